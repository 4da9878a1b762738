package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// exitInterrupted is the status that shells expect of a program that Ctrl-C stopped.
const exitInterrupted = 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newCommand(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "interrupted")
		return exitInterrupted
	case errors.Is(err, errReported):
		return 1
	default:
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return 1
	}
}

// errReported fails a command whose output has said why already.
var errReported = errors.New("reported")

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:           "patch-ollama",
		Short:         "Build Ollama with kvtier's patches",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.setup(cmd.Flags())
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(stdout)
	root.SetErr(stderr)
	a.addFlags(root.PersistentFlags())
	root.AddCommand(
		newFetchCommand(a),
		newCheckCommand(a),
		newApplyCommand(a),
		newRevertCommand(a),
		newStatusCommand(a),
		newBuildCommand(a),
		newTestCommand(a),
		newFormatCommand(a),
	)
	return root
}
