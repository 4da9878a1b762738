package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/table"
	"github.com/spf13/cobra"
)

// checkFlags are the flags of check alone.
type checkFlags struct {
	all, build, test, asJSON bool
}

// checkResult is a line of check's table and an object of its JSON. A check is null that was
// not requested, or not tried because an earlier one failed.
type checkResult struct {
	Version string `json:"version"`
	Origin  string `json:"origin,omitempty"`
	Patches int    `json:"patches"`
	Applies *bool  `json:"applies"`
	Reverts *bool  `json:"reverts"`
	Builds  *bool  `json:"builds"`
	Tests   *bool  `json:"tests"`
	Patch   string `json:"patch,omitempty"` // the patch that does not fit
	Detail  string `json:"detail,omitempty"`

	source ollamasrc.Source
	series ollamasrc.Series
}

// good is false when a check failed, or none could be tried.
func (r checkResult) good() bool {
	failed := func(outcome *bool) bool { return outcome != nil && !*outcome }
	return r.Applies != nil && *r.Applies && !failed(r.Reverts) && !failed(r.Builds) && !failed(r.Tests)
}

// why is the sentence below the table about a release that is not good.
func (r checkResult) why() string {
	if r.Patch != "" {
		return fmt.Sprintf("%s: %s: %s", r.Version, r.Patch, r.Detail)
	}
	return fmt.Sprintf("%s: %s", r.Version, r.Detail)
}

func newCheckCommand(a *app) *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Try the series on a release, or on all, without touching the source",
		Long: `Report whether the series applies to a release and comes off again without a trace,
without touching the source tree. With --all: for every release on the Go module
proxy or, with --src, for every supported release that the clone has a tag for.

With --build each release is also built in a folder of its own: the binary, with
the CPU backend that Go compiles (without optimization, and without the libraries
that CMake builds), is run for its version, and the packages that the series
touches are vetted, their tests included. With --test upstream's tests of these
packages are run too, except the scheduler's, which assert timings. A release whose
C code differs from that of the release before takes minutes.

A dash in the table is a check that was not asked for, or could not be tried. The
command fails when a check failed, or when a release is not available.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			results, err := a.check(cmd.Context(), f)
			if err != nil {
				return err
			}
			if err := a.printCheck(results, f.asJSON); err != nil {
				return err
			}
			if slices.ContainsFunc(results, func(r *checkResult) bool { return !r.good() }) {
				return errReported
			}
			return nil
		},
	}
	flags := cmd.Flags()
	a.addWithout(flags, "none, whatever the tree has")
	flags.BoolVar(&f.all, "all", false, "check every supported release that can be had")
	flags.BoolVar(&f.build, "build", false, "also build each, with Go alone")
	flags.BoolVar(&f.test, "test", false, "also build each and run upstream's tests of the packages that the series touches")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) check(ctx context.Context, f checkFlags) ([]*checkResult, error) {
	if f.all && a.versionGiven {
		return nil, cli.Usagef("--all and --version contradict each other; give one of them")
	}
	versions := []string{a.version}
	if f.all {
		var err error
		if versions, err = ollamasrc.Versions(ctx, a.src); err != nil {
			return nil, err
		}
	}
	steps := progress.New(a.stderr, stepNames)
	defer steps.Close()
	results, err := a.checkFit(ctx, steps, versions)
	if err == nil && (f.build || f.test) {
		err = a.try(ctx, steps, results, f.test)
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
	r := &checkResult{Version: version, Patches: len(series.Patches), series: series}
	r.source, err = ollamasrc.OpenSource(ctx, a.lay, a.src, version)
	if err == nil {
		r.Origin = r.source.Origin()
		err = ollamasrc.Check(ctx, a.lay, r.source, series)
	}
	var misfit *ollamasrc.ApplyError
	var left *ollamasrc.RevertError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &misfit):
		r.Applies = new(bool)
		r.Patch, r.Detail = misfit.Patch, misfit.Detail
	case errors.As(err, &left):
		r.Applies, r.Reverts = yes(), new(bool)
		r.Patch, r.Detail = left.Patch, "does not come off: "+left.Detail
	case err != nil:
		r.Detail = err.Error()
	default:
		r.Applies, r.Reverts = yes(), yes()
	}
	return r, nil
}

func yes() *bool {
	outcome := true
	return &outcome
}

// try builds every release that the series fits, and tests it.
func (a *app) try(ctx context.Context, steps *progress.Display, results []*checkResult, test bool) error {
	lay := ollamasrc.TrialLayout(a.lay)
	unlock, err := lock(ctx, lay, a.stderr)
	if err != nil {
		return err
	}
	defer unlock()
	for _, r := range results {
		if r.Applies == nil || !*r.Applies || !*r.Reverts {
			continue
		}
		if err := r.try(ctx, lay, steps, test); err != nil {
			r.Detail = err.Error()
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(ctx.Err(), ollamasrc.EndTrials(lay))
}

// try builds and tests a release, notes the results, and returns the first error.
func (r *checkResult) try(ctx context.Context, lay ollamasrc.Layout, steps *progress.Display, test bool) error {
	r.Builds = new(bool)
	trial, err := ollamasrc.NewTrial(ctx, lay, r.source, r.series, steps)
	if err != nil {
		return err
	}
	if err := trial.Build(ctx); err != nil {
		return err
	}
	r.Builds = yes()
	if !test {
		return nil
	}
	r.Tests = new(bool)
	if err := trial.Test(ctx); err != nil {
		return err
	}
	r.Tests = yes()
	return nil
}

func (a *app) printCheck(results []*checkResult, asJSON bool) error {
	if asJSON {
		return a.json(results)
	}
	cell := func(outcome *bool) string {
		switch {
		case outcome == nil:
			return "-"
		case *outcome:
			return "yes"
		default:
			return "no"
		}
	}
	var rows [][]string
	for _, r := range results {
		rows = append(rows, []string{r.Version, strconv.Itoa(r.Patches), cell(r.Applies), cell(r.Reverts), cell(r.Builds), cell(r.Tests)})
	}
	table.Print(a.stdout, []string{"VERSION", "PATCHES", "APPLIES", "REVERTS", "BUILDS", "TESTS"}, rows)
	for _, r := range results {
		if !r.good() {
			fmt.Fprintln(a.stdout, r.why())
		}
	}
	return nil
}
