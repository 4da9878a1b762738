// Package show prints the results of the demo and the benchmarks for people: numbers with the digits that
// matter, tables, steps, and the end of a command.
package show

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// exitInterrupted is the status that shells expect of a program stopped by Ctrl-C.
const exitInterrupted = 130

// Main is the main function of a command: Main calls run, whose context ends with a signal,
// prints the error and exits with the status.
func Main(run func(ctx context.Context, args []string, out, errOut io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case interrupted:
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(exitInterrupted)
	default:
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
