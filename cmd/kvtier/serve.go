package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/llamatier/launch"
)

func newServeCommand(out *output, log *slog.Logger) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve [flags] -- llama-server [arguments]",
		Short: "Run a llama-server of your own behind kvtier",
		Long: `Run a llama-server of your own behind kvtier: conversations are stored, and come back
after the server was started again. All that follows -- is the command line that you
would give without kvtier.

--root, --local-gb, --remote and --remote-gb replace variables, as for the other verbs;
all other variables count as they do under Ollama. Lines on standard error name the
pages, the log, the address for clients, or the reason why nothing is stored.`,
		Example: `  kvtier serve -- llama-server -m model.gguf --port 8080
  kvtier serve --root /fast/pages --local-gb 100 -- ./llama-server -m model.gguf`,
		Args: cli.Args(1, math.MaxInt, "name a llama-server and its arguments behind --, as in kvtier serve -- llama-server -m model.gguf"),
		RunE: func(cmd *cobra.Command, args []string) error {
			real, err := findReal(args[0], "behind --")
			if err != nil {
				return err
			}
			if err := setVariables(cmd.Flags()); err != nil {
				return err
			}
			if err := os.Setenv(tierenv.TieringVariable, "1"); err != nil {
				return err
			}
			sayServed(out.stderr, log, real, launch.Command{Args: args[1:], Environ: os.Environ()})
			return become(real, args[1:])
		},
	}
	only(cmd, "root", "remote", "local-gb", "remote-gb")
	cmd.Flags().SetInterspersed(false) // flags behind llama-server belong to llama-server
	return cmd
}

// findReal returns the path of a llama-server, which may be a name in PATH. An error says where to name another.
func findReal(name, where string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("find the llama-server to run: %w; name one %s", err, where)
	}
	if _, ours := install.Here().Program(path); ours {
		return "", cli.Usagef("%s is kvtier itself; name the llama-server of llama.cpp %s", path, where)
	}
	return filepath.Abs(path)
}

// sayServed tells the person at the terminal about a llama-server that will run behind kvtier.
// Its own output names a socket as its address.
func sayServed(w io.Writer, log *slog.Logger, real string, c launch.Command) {
	config, err := tierenv.FromEnvironment(log)
	why := cmp.Or(c.Hidden(), c.Unstorable())
	switch {
	case c.Routes():
		fmt.Fprintf(w, "kvtier: nothing is stored: %s\n", launch.RouterRemedy)
		return
	case !c.Serves():
		return // it prints something and ends, or computes embeddings
	case err != nil:
		why = err.Error()
	}
	if why != "" {
		fmt.Fprintf(w, "kvtier: nothing is stored: %s\n", why)
	} else {
		fmt.Fprintf(w, "kvtier: pages are kept in %s; %s says whether the model is tiered\n", config.Local, cmp.Or(install.LogPath(), "no log (set "+install.LogVariable+" to a file)"))
	}
	if c.Hidden() != "" {
		return
	}
	if host, port, err := c.Address(real); err == nil {
		fmt.Fprintf(w, "kvtier: clients connect to http://%s; the socket that llama-server names below is kvtier's own\n", net.JoinHostPort(host, strconv.Itoa(port)))
	}
}
