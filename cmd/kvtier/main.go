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

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/version"
)

// Exit statuses besides 0 and 1.
const (
	exitUnchecked   = 2
	exitInterrupted = 130 // what shells expect of a program that Ctrl-C stopped
)

func main() { os.Exit(mainStatus()) }

func mainStatus() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A disk that hangs does not see the context; a second Ctrl-C ends it.
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// statusError fails a command with an exit status of its own.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runIn(ctx, &app{stdout: stdout, stderr: stderr, terminal: progress.IsTerminal(stderr)}, args)
}

func runIn(ctx context.Context, a *app, args []string) int {
	a.screen = a.stderr
	a.stdout, a.stderr = printer{a.stdout}, printer{a.stderr}
	root := newCommand(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var status *statusError
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(a.stderr, "interrupted")
		return exitInterrupted
	}
	// Lines after the first may be part of a file's name.
	fmt.Fprintf(a.stderr, "Error: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	if diskstore.NoAnswer(err) {
		fmt.Fprintln(a.stderr, "Is it mounted, and its server up? --timeout waits longer.")
	}
	if errors.As(err, &status) {
		return status.status
	}
	return 1
}

// oneArg wants one argument, and says which otherwise.
func oneArg(want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New(want)
		}
		return nil
	}
}

func newCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "kvtier",
		Short:         "Look after the pages that kvtier's Ollama keeps on disk",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.HasParent() {
				return nil // help needs no configuration
			}
			return a.setup(cmd.Name(), cmd.Flags())
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	a.addFlags(root.PersistentFlags())
	root.AddCommand(
		newListCommand(a),
		newStatCommand(a),
		newCheckCommand(a),
		newRepairCommand(a),
		newCollectCommand(a),
		newRemoveCommand(a),
		newInspectCommand(a),
		newExportCommand(a),
		newImportCommand(a),
		newBenchCommand(a),
	)
	return root
}
