package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/llamatier/install"
)

// Variables of kvtier-llama-server.
const (
	tieringVar    = "OLLAMA_KV_TIERING"
	realServerVar = "KVTIER_LLAMA_SERVER"
)

func newServeCommand(a *app) *cobra.Command {
	var server string
	cmd := &cobra.Command{
		Use:   "serve [flags] -- llama-server [arguments]",
		Short: "Run a llama-server of your own behind kvtier",
		Long: `Run a llama-server of your own behind kvtier: conversations are stored, and come back
after the server was started again. All that follows -- is the command line that you
would give without kvtier.

--root, --local-gb, --remote and --remote-gb set the variables of the same meaning; all
other variables count as they do under Ollama.`,
		Example: `  kvtier serve -- llama-server -m model.gguf --port 8080
  kvtier serve --root /fast/pages --local-gb 100 -- ./llama-server -m model.gguf`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("name a llama-server and its arguments behind --, as in kvtier serve -- llama-server -m model.gguf")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.flagsOfServer(cmd.Flags(), "root", "remote", "local-gb", "remote-gb"); err != nil {
				return err
			}
			variables, err := a.given(cmd.Flags())
			if err != nil {
				return err
			}
			variables[tieringVar] = "1"
			if variables[realServerVar], err = findProgram(args[0]); err != nil {
				return err
			}
			if server == "" {
				if server, err = besideOrInPath(install.ServerProgram); err != nil {
					return err
				}
			}
			for name, value := range variables {
				if err := os.Setenv(name, value); err != nil {
					return err
				}
			}
			return become(server, args[1:])
		},
	}
	cmd.Flags().SetInterspersed(false) // flags behind llama-server belong to llama-server
	cmd.Flags().StringVar(&server, "kvtier-llama-server", "", "kvtier-llama-server, if it is neither beside kvtier nor in PATH")
	cli.Give(cmd.Flags(), "kvtier-llama-server", "a file")
	return cmd
}

// findProgram returns the path of a program, which may be a name in PATH.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("find the llama-server to run: %w", err)
	}
	return filepath.Abs(path)
}

// besideOrInPath returns the path of a program of ours.
func besideOrInPath(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find %s: it is not beside kvtier (%s), and %w; name it with --%s", name, filepath.Dir(self), err, name)
	}
	return path, nil
}
