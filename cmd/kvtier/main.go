package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/llamatier/install"
)

// exitUnchecked is the status of a check that could not read all files and found no damage
// in the rest. Package cli has the other statuses.
const exitUnchecked = 3

func main() {
	if stands(os.Args[0]) {
		return
	}
	os.Exit(mainStatus())
}

func mainStatus() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A hung disk does not see the context: a second Ctrl-C ends the process.
	context.AfterFunc(ctx, stop)
	h := host{stdout: os.Stdout, stderr: os.Stderr, terminal: progress.IsTerminal(os.Stderr), become: becomeOwner}
	return runIn(ctx, h, os.Args[1:])
}

// host is the surroundings of a command line. Tests set other ones; zero values stand for this machine.
type host struct {
	stdout, stderr io.Writer
	terminal       bool                                         // stderr gets progress bars
	served         func(context.Context) (install.Served, bool) // finds the service that kvtier is installed for
	machine        doctor.Environment                           // that doctor looks at
	become         func(access) (rights, error)                 // has root run as the owner of pages; nil does not
}

func runIn(ctx context.Context, h host, args []string) int {
	out := &output{stdout: printer{h.stdout}, stderr: printer{h.stderr}}
	if h.terminal {
		out.screen = h.stderr
	}
	root := newCommand(h, out, args)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(out.stderr, "interrupted")
		return cli.Interrupted
	}
	if text := err.Error(); text != "" { // line breaks may be part of a file's name
		fmt.Fprintf(out.stderr, "Error: %s\n", strings.ReplaceAll(text, "\n", "\n  "))
	}
	if tier.NoAnswer(err) {
		fmt.Fprintln(out.stderr, "Is it mounted, and its server up and within reach? --timeout waits longer.")
	}
	return cli.Status(err)
}

func newCommand(h host, out *output, args []string) *cobra.Command {
	if h.served == nil {
		h.served = install.Here().Served
	}
	if h.machine == nil {
		h.machine = doctor.Here{}
	}
	root := &cobra.Command{
		Use:     "kvtier",
		Short:   "Look after the pages that kvtier keeps on disk for Ollama and llama-server",
		Version: version.String(),
	}
	root.SetOut(out.stdout)
	root.SetErr(out.stderr)
	at := &storage{log: newLogger(out.stderr, slog.LevelWarn), args: args, become: h.become}
	models := &modelStore{timeout: &at.timeout}
	flags := root.PersistentFlags()
	flags.BoolVar(&out.asJSON, "json", false, "print JSON")
	at.addFlags(flags)
	cli.Flag(flags, &models.given, "models", giveDir, "directory of Ollama's models, instead of OLLAMA_MODELS")
	root.AddCommand(
		newListCommand(out, at, models),
		newStatCommand(out, at),
		newCheckCommand(out, at),
		newRepairCommand(out, at),
		newGCCommand(out, at, models),
		newRemoveCommand(out, at, models),
		newInspectCommand(out, at, models),
		newSearchCommand(out, at, models),
		newExportCommand(out, at, models),
		newImportCommand(out, at, models),
		newBenchCommand(out, at, models),
		newPlanCommand(out, at, models),
		newResidencyCommand(out, at, models),
		newWhyCommand(out, at, models),
		newTopCommand(out, at, models),
		newCollectCommand(out, at),
	)
	for _, verb := range root.Commands() { // the others need no configuration
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error {
			if err := at.checkFlags(cmd.Name(), cmd.Flags()); err != nil {
				return err
			}
			files := cmd.Name() == "import" || cmd.Flags().Changed("output")
			return cli.Usage(at.find(cmd.Context(), cmd.Flags(), files, h.served))
		}
	}
	doctor, limit := newDoctorCommand(out, h, at), newLimitCommand(out, models)
	for _, verb := range []*cobra.Command{doctor, limit} {
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error { return at.checkFlags(cmd.Name(), cmd.Flags()) }
	}
	root.AddCommand(newOllamaCommand(out), newServeCommand(out, at.log), newTryCommand(out, h), doctor, limit, newBalanceCommand(out))
	if err := addCompletions(root, models); err != nil {
		panic(err) // a flag is missing
	}
	cli.Prepare(root)
	return root
}

// addCompletions sets the shell completions: names of models and of directories for flags
// that take these, files after import, inspect and serve, and nothing elsewhere.
func addCompletions(root *cobra.Command, models *modelStore) error {
	for _, flag := range []string{"root", "remote", "models"} {
		if err := root.MarkPersistentFlagDirname(flag); err != nil {
			return err
		}
	}
	for _, verb := range root.Commands() {
		switch verb.Name() {
		case "import", "inspect", "serve", "ollama":
		case "rm", "plan", "why":
			verb.ValidArgsFunction = models.complete
		case "try":
			verb.ValidArgsFunction = models.completeOrFile
		default:
			verb.ValidArgsFunction = cobra.NoFileCompletions
		}
		if verb.Flags().Lookup("model") == nil || verb.Name() == "inspect" {
			continue
		}
		if err := verb.RegisterFlagCompletionFunc("model", models.complete); err != nil {
			return err
		}
	}
	return nil
}
