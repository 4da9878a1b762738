package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/table"
	"github.com/spf13/cobra"
)

// checkResult is a line of check's table.
type checkResult struct {
	version                         string
	patches                         int
	applies, reverts, builds, tests verdict
	why                             string // the sentence below the table about a release that is not good

	source ollamasrc.Source
	series ollamasrc.Series
}

// verdict is what the table says of a check.
type verdict string

const (
	untried verdict = "-" // not asked for, or an earlier one failed
	failed  verdict = "no"
	passed  verdict = "yes"
)

func newCheckCommand(a *app) *cobra.Command {
	var all, test bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Try the series on a release, or on all, without touching the source",
		Long: `Report whether the series applies to a release and comes off again without a trace,
without touching the source tree. With --all: for every release on the Go module
proxy or, with --src, for every supported release that the clone has a tag for.

With --test each release is also built in a folder of its own: the binary, with
the CPU backend that Go compiles (without optimization, and without the libraries
that CMake builds), is run for its version, and the packages that the series
touches are vetted. Then upstream's tests of these packages are run, except the
scheduler's, which assert timings. A release whose C code differs from that of the
release before takes minutes.

A dash in the table is a check that was not asked for, or could not be tried. The
command fails when a check failed, or when a release is not available.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			results, err := a.check(cmd.Context(), all, test)
			if err != nil {
				return err
			}
			return a.printCheck(results)
		},
	}
	flags := cmd.Flags()
	a.addWithout(flags, "none, whatever the tree has")
	flags.BoolVar(&all, "all", false, "check every supported release that can be had")
	flags.BoolVar(&test, "test", false, "also build each and run upstream's tests of the packages that the series touches")
	return cmd
}

func (a *app) check(ctx context.Context, all, test bool) ([]*checkResult, error) {
	if all && a.versionGiven {
		return nil, cli.Usagef("--all and --version contradict each other; give one of them")
	}
	versions := []string{a.version}
	if all {
		var err error
		if versions, err = ollamasrc.Versions(ctx, a.src); err != nil {
			return nil, err
		}
	}
	steps := progress.New(a.stderr, stepNames)
	defer steps.Close()
	results, err := a.checkFit(ctx, steps, versions)
	if err == nil && test {
		err = a.try(ctx, steps, results)
	}
	return results, err
}

// checkFit applies and reverts, which takes a moment for each release.
func (a *app) checkFit(ctx context.Context, steps *progress.Display, versions []string) ([]*checkResult, error) {
	step := steps.Step("check")
	var results []*checkResult
	for i, version := range versions {
		step.Progress(int64(i), int64(len(versions)))
		r, err := a.checkOne(ctx, version)
		if err != nil {
			step.End("", err)
			return nil, err
		}
		results = append(results, r)
	}
	step.End("", nil)
	return results, nil
}

// checkOne returns an error only when no release can be checked: a release that cannot be
// opened is a result.
func (a *app) checkOne(ctx context.Context, version string) (*checkResult, error) {
	series, err := ollamasrc.LoadSeries(a.patches, version, a.leftOut)
	if err != nil {
		return nil, err
	}
	r := &checkResult{version: version, patches: len(series.Patches), series: series,
		applies: untried, reverts: untried, builds: untried, tests: untried}
	if r.source, err = ollamasrc.OpenSource(ctx, a.lay, a.src, version); err == nil {
		err = ollamasrc.Check(ctx, a.lay, r.source, series)
	}
	var misfit *ollamasrc.MisfitError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil:
		r.applies, r.reverts = passed, passed
	case !errors.As(err, &misfit):
		r.why = err.Error()
	case misfit.Reverting:
		r.applies, r.reverts = passed, failed
		r.why = strings.TrimPrefix(misfit.Patch+": does not come off: "+misfit.Detail, ": ")
	default:
		r.applies, r.why = failed, misfit.Patch+": "+misfit.Detail
	}
	return r, nil
}

// try builds every release that the series fits, and tests it.
func (a *app) try(ctx context.Context, steps *progress.Display, results []*checkResult) error {
	lay := ollamasrc.TrialLayout(a.lay)
	unlock, err := lock(ctx, lay, a.stderr)
	if err != nil {
		return err
	}
	defer unlock()
	for _, r := range results {
		if r.reverts != passed {
			continue
		}
		built, err := ollamasrc.Try(ctx, lay, r.source, r.series, steps)
		switch {
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), ollamasrc.EndTrials(lay))
		case !built:
			r.builds, r.why = failed, err.Error()
		case err != nil:
			r.builds, r.tests, r.why = passed, failed, err.Error()
		default:
			r.builds, r.tests = passed, passed
		}
	}
	return ollamasrc.EndTrials(lay)
}

// printCheck prints the table, and fails when a release is not good.
func (a *app) printCheck(results []*checkResult) (err error) {
	var rows [][]string
	for _, r := range results {
		rows = append(rows, []string{r.version, strconv.Itoa(r.patches), string(r.applies), string(r.reverts), string(r.builds), string(r.tests)})
	}
	table.Print(a.stdout, []string{"VERSION", "PATCHES", "APPLIES", "REVERTS", "BUILDS", "TESTS"}, rows)
	for _, r := range results {
		if r.why != "" {
			fmt.Fprintf(a.stdout, "%s: %s\n", r.version, r.why)
			err = errReported
		}
	}
	return err
}
