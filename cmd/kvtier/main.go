package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/version"
)

// exitUnchecked is the status of a check that could not read all files and found no damage
// in the rest. Package cli has the other statuses.
const exitUnchecked = 3

func main() { os.Exit(mainStatus()) }

func mainStatus() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A hung disk does not see the context: a second Ctrl-C ends the process.
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runIn(ctx, &app{stdout: stdout, stderr: stderr, terminal: progress.IsTerminal(stderr)}, args)
}

func runIn(ctx context.Context, a *app, args []string) int {
	a.screen = a.stderr
	a.stdout, a.stderr = printer{a.stdout}, printer{a.stderr}
	a.args = args
	root := newCommand(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(a.stderr, "interrupted")
		return cli.Interrupted
	}
	// Line breaks may be part of a file's name.
	fmt.Fprintf(a.stderr, "Error: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	if tier.NoAnswer(err) {
		fmt.Fprintln(a.stderr, "Is it mounted, and its server up? --timeout waits longer.")
	}
	return cli.Status(err)
}

func newCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:     "kvtier",
		Short:   "Look after the pages that kvtier keeps on disk for Ollama",
		Version: version.String(),
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	a.addFlags(root.PersistentFlags())
	root.AddCommand(
		newListCommand(a),
		newStatCommand(a),
		newCheckCommand(a),
		newRepairCommand(a),
		newGCCommand(a),
		newRemoveCommand(a),
		newInspectCommand(a),
		newExportCommand(a),
		newImportCommand(a),
		newBenchCommand(a),
		newPlanCommand(a),
		newResidencyCommand(a),
		newWhyCommand(a),
		newTopCommand(a),
		newCollectCommand(a),
	)
	for _, verb := range root.Commands() { // the others need no configuration
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error {
			return cli.Usage(a.setup(cmd.Context(), cmd.Name(), cmd.Flags()))
		}
	}
	root.AddCommand(newOllamaCommand(a), newServeCommand(a), newDoctorCommand(a), newLimitCommand(a), newBalanceCommand(a))
	if err := a.addCompletions(root); err != nil {
		panic(err) // a flag is missing
	}
	cli.Prepare(root)
	return root
}
