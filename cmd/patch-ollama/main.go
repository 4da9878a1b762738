package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/spf13/cobra"
)

func main() { os.Exit(mainStatus()) }

func mainStatus() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
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
		return cli.Interrupted
	case !errors.Is(err, errReported):
		fmt.Fprintf(stderr, "Error: %v\n", err)
	}
	return cli.Status(err)
}

// errReported fails a command whose output has given the reason already.
var errReported = errors.New("reported")

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdout: stdout, stderr: stderr}
	root := &cobra.Command{Use: "patch-ollama", Short: "Build Ollama with kvtier's patches"}
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
	for _, verb := range root.Commands() { // help works outside a checkout, too
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error { return a.setup(cmd.Flags()) }
	}
	cli.Prepare(root)
	return root
}
