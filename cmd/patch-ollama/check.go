package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/table"
	"github.com/spf13/cobra"
)

// checkResult is one line of check's table and one object of its JSON.
type checkResult struct {
	Version string `json:"version"`
	Origin  string `json:"origin,omitempty"`
	Patches int    `json:"patches"`
	Applies bool   `json:"applies"`
	Patch   string `json:"patch,omitempty"` // the one that does not fit
	Detail  string `json:"detail,omitempty"`
}

func (r checkResult) String() string {
	switch {
	case r.Applies:
		return "applies"
	case r.Patch != "":
		return r.Patch + ": " + r.Detail
	default:
		return r.Detail
	}
}

func newCheckCommand(a *app) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether the series applies, without touching the source",
		Long: `Say whether the series applies to a release, without touching the source tree.
With --all: to every release on the Go module proxy or, with --src, to every
supported release that the clone has a tag for. Fails when it does not apply to
one of them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			results, err := a.check(cmd.Context(), all)
			if err != nil {
				return err
			}
			if err := a.printCheck(results, asJSON); err != nil {
				return err
			}
			for _, r := range results {
				if !r.Applies {
					return errReported
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "check every supported release that can be had")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) check(ctx context.Context, all bool) ([]checkResult, error) {
	if all && a.versionGiven {
		return nil, errors.New("--all and --version contradict each other; give one of them")
	}
	series, err := a.series()
	if err != nil {
		return nil, err
	}
	versions := []string{a.version}
	if all {
		if versions, err = ollamasrc.Versions(ctx, a.src); err != nil {
			return nil, err
		}
	}
	steps := newSteps(a.stderr)
	defer steps.Close()
	step := steps.Step("check")
	var results []checkResult
	for i, version := range versions {
		step.Progress(i, len(versions))
		r, err := a.checkOne(ctx, version, series)
		if err != nil {
			step.End("", err)
			return nil, err
		}
		results = append(results, r)
	}
	step.End("", nil)
	return results, nil
}

// checkOne returns an error only when an interrupt ends everything: a release
// that cannot be had is a result like any other.
func (a *app) checkOne(ctx context.Context, version string, series ollamasrc.Series) (checkResult, error) {
	r := checkResult{Version: version, Patches: len(series.Patches)}
	source, err := ollamasrc.OpenSource(ctx, a.lay, a.src, version)
	if err == nil {
		r.Origin = source.Origin()
		err = ollamasrc.Check(ctx, a.lay, source, series)
	}
	var misfit *ollamasrc.ApplyError
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case errors.As(err, &misfit):
		r.Patch, r.Detail = misfit.Patch, misfit.Detail
	case err != nil:
		r.Detail = err.Error()
	default:
		r.Applies = true
	}
	return r, nil
}

func (a *app) printCheck(results []checkResult, asJSON bool) error {
	if asJSON {
		return a.json(results)
	}
	var rows [][]string
	for _, r := range results {
		rows = append(rows, []string{r.Version, strconv.Itoa(r.Patches), fmt.Sprint(r)})
	}
	table.Print(a.stdout, []string{"VERSION", "PATCHES", "RESULT"}, rows)
	return nil
}
