package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/progress"
)

// checked is the output of check --json and repair --json.
type checked struct {
	Tiers    []inspect.TierCheck `json:"tiers"`
	Findings []inspect.Finding   `json:"findings"`
}

func newCheckCommand(out *output, at *storage) *cobra.Command {
	return checkCommand(out, at, false, &cobra.Command{
		Use:   "check",
		Short: "Read all pages and name damaged ones",
		Long: `Read all pages of both tiers from beginning to end, decompress compressed ones, and
name those that are damaged, in the wrong place, unreadable or open to others.
Nothing is changed. Servers may use the pages meanwhile.

It exits with 1 when anything is damaged, and with 3 when something could not be
checked.`,
	})
}

func newRepairCommand(out *output, at *storage) *cobra.Command {
	return checkCommand(out, at, true, &cobra.Command{
		Use:   "repair",
		Short: "Check, and move damaged pages out of the way",
		Long: `Check as kvtier check does, move damaged files to quarantine (which keeps the 16
newest), remove temporary files that dead processes left, copy a missing manifest
from the other tier, and take away rights that other users have.

Good pages are never changed, and files that no store made stay. Damaged pages are
computed again when they are needed.`,
	})
}

// checkCommand adds to a command what check and repair do.
func checkCommand(out *output, at *storage, repair bool, cmd *cobra.Command) *cobra.Command {
	sample := "100%"
	cli.Flag(cmd.Flags(), &sample, "sample", "a share such as 5%, or 0.05", "share of the pages to read, others every time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		part, err := share(sample)
		if err != nil {
			return cli.Usagef("--sample: %w", err)
		}
		found, err := check(cmd.Context(), at, out.bars(), inspect.CheckOptions{Sample: part, Repair: repair})
		if err != nil {
			return &cli.Error{Status: exitUnchecked, Err: err}
		}
		return cmp.Or(out.show(found, found.print), found.verdict(repair))
	}
	return cmd
}

// check checks both tiers. bars is nil where no progress is shown.
func check(ctx context.Context, at *storage, bars *progress.Display, opt inspect.CheckOptions) (out checked, err error) {
	out.Findings = []inspect.Finding{}
	opt.Found = func(f inspect.Finding) { out.Findings = append(out.Findings, f) }
	err = at.with(ctx, func(root *roots) error {
		defer bars.Close()
		if bars != nil { // only bars need the total in advance
			steps := map[string]*progress.Step{tier.Local: bars.Bytes("checking " + tier.Local)}
			if at.config.Remote != "" {
				steps[tier.Remote] = bars.Bytes("checking " + tier.Remote)
			}
			opt.Progress = func(name string, done, total int64) { steps[name].Progress(done, total) }
		}
		out.Tiers, err = root.Check(ctx, opt)
		return err
	})
	slices.SortStableFunc(out.Findings, func(a, b inspect.Finding) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Path, b.Path))
	})
	return out, err
}

// verdict turns the findings into an error with the command's exit status.
func (out checked) verdict(repaired bool) error {
	var damage, unchecked int
	var why []error
	for _, t := range out.Tiers {
		damage += t.Damage
		unchecked += t.Problems[inspect.ProblemUnchecked]
		if t.Err != nil {
			why = append(why, fmt.Errorf("the %s tier could not be checked: %w", t.Tier, t.Err))
		}
	}
	if unchecked > 0 {
		why = append(why, fmt.Errorf("%s could not be checked", plural(unchecked, "file")))
	}
	switch {
	case damage > 0 && repaired:
		return errors.Join(append(why, fmt.Errorf("%s damaged and could not be repaired", isAre(damage)))...)
	case damage > 0:
		return errors.Join(append(why, fmt.Errorf("%s damaged and will be computed again; kvtier repair moves damaged files out of the way", isAre(damage)))...)
	case len(why) > 0:
		return &cli.Error{Status: exitUnchecked, Err: errors.Join(why...)}
	}
	return nil
}

func isAre(n int) string {
	if n == 1 {
		return "1 file is"
	}
	return count(n) + " files are"
}

func (out checked) print(w io.Writer) {
	for _, f := range out.Findings {
		fmt.Fprintf(w, "%s: %s: %s", f.Problem, oneLine(f.Path), oneLine(f.Why))
		if f.Done != "" {
			fmt.Fprintf(w, " -> %s", oneLine(f.Done))
		}
		fmt.Fprintln(w)
	}
	if len(out.Findings) > 0 {
		fmt.Fprintln(w)
	}
	printTable(w, []string{"TIER", "PAGES", "TAILS", "READ", "SIZE", "FOUND", "REPAIRED"}, rowsOf(out.Tiers, func(t inspect.TierCheck) []string {
		return []string{t.Tier, count(t.Pages), count(t.Tails), count(t.Read), humanBytes(t.ReadBytes), problemsOf(t), count(t.Repaired)}
	}))
}

func problemsOf(t inspect.TierCheck) string {
	var list []string
	for problem, n := range t.Problems {
		list = append(list, fmt.Sprintf("%s %s", count(n), problem))
	}
	slices.Sort(list)
	switch {
	case t.Error != "":
		return "not checked"
	case len(list) == 0:
		return "nothing"
	}
	return strings.Join(list, ", ")
}
