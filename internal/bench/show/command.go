// Package show prints the results of the demo and the benchmarks for people: numbers with the digits that
// matter, tables, steps, and the end of a command.
package show

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/kvtier/kvtier/internal/progress"
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

// StepNames is the width of the column that holds the names of steps.
const StepNames = 42

// Steps shows the steps of a benchmark while they run. A step returns a note about its result.
type Steps struct{ *progress.Display }

// Step runs a step.
func (s Steps) Step(name string, do func() (note string, err error)) error {
	return s.Do(name, func(*progress.Step) (string, error) { return do() })
}

// Repeat runs a step n times.
func (s Steps) Repeat(name string, n int, do func(i int) (note string, err error)) error {
	for i := range n {
		if err := s.Step(fmt.Sprintf("%s, %d of %d", name, i+1, n), func() (string, error) { return do(i) }); err != nil {
			return err
		}
	}
	return nil
}

// Chosen reads -only, a list of parts separated by commas; "" are all of them.
func Chosen(only string, all []string) ([]string, error) {
	if only == "" {
		return all, nil
	}
	chosen := strings.Split(only, ",")
	for _, name := range chosen {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("-only %s: there is no benchmark %q, only %s", only, name, strings.Join(all, ", "))
		}
	}
	return chosen, nil
}

// Lengths reads -sizes, a list of numbers of tokens.
func Lengths(sizes string, least, most int) (lengths []int, err error) {
	for number := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("-sizes %s: %q is not a number of tokens from %d to %d", sizes, number, least, most)
		}
		lengths = append(lengths, n)
	}
	return lengths, nil
}

// Save writes a report as JSON.
func Save(path string, report any) error {
	data, err := json.MarshalIndent(report, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the report %s: %w", path, err)
	}
	return nil
}
