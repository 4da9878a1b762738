package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ollama/ollama/format"
	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
)

// tierStat is a tier in the output of stat --json. Sizes are in bytes.
type tierStat struct {
	Tier        string         `json:"tier"`
	Root        string         `json:"root"`
	Budget      *int64         `json:"budget"` // null if unknown
	Pages       int            `json:"pages"`
	Tails       int            `json:"tails"`
	Lossy       int            `json:"lossy"` // of pages and tails
	PageBytes   int64          `json:"page_bytes"`
	Temp        int            `json:"temp_files"`
	TempBytes   int64          `json:"temp_bytes"`
	Quarantined int            `json:"quarantined_files"`
	QuarBytes   int64          `json:"quarantined_bytes"`
	Booked      *int64         `json:"booked_bytes"` // bytes under the budget; null before the first count
	Models      int            `json:"fingerprints"`
	Hits        int64          `json:"hits"`
	LastHit     *time.Time     `json:"last_hit"` // null for never
	Processes   int            `json:"processes"`
	DiskBytes   int64          `json:"disk_bytes"`
	DiskFree    int64          `json:"disk_free_bytes"`
	Written     []writtenOnDay `json:"written"`
	Error       string         `json:"error,omitempty"` // reason why the other fields are empty
}

// writtenOnDay is the number of bytes written in one UTC day.
type writtenOnDay struct {
	Day   string `json:"day"`
	Bytes int64  `json:"bytes"`
}

// shownDays is the number of days of writing in the table; JSON has all recorded days.
const shownDays = 7

func newStatCommand(a *app) *cobra.Command {
	var f statFlags
	cmd := &cobra.Command{
		Use:   "stat",
		Short: "Show how full the tiers are, and the bytes written per day",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(a.asJSON); err != nil {
				return err
			}
			return a.with(cmd.Context(), func(root *roots) error { return a.stat(cmd.Context(), root, f) })
		},
	}
	f.add(cmd.Flags())
	return cmd
}

func (a *app) stat(ctx context.Context, root *roots, f statFlags) error {
	usage, err := root.Usage(ctx)
	if err != nil {
		return err
	}
	if f.prometheus {
		return a.statMetrics(ctx, usage, f.output)
	}
	tiers := []tierStat{a.tierStat(tier.Local, usage.Local)}
	if a.config.Remote != "" {
		remote := a.tierStat(tier.Remote, usage.Remote)
		if usage.RemoteErr != nil {
			remote = tierStat{Tier: tier.Remote, Root: a.config.Remote, Error: usage.RemoteErr.Error()}
		}
		tiers = append(tiers, remote)
	}
	if a.asJSON {
		if err := a.json(tiers); err != nil {
			return err
		}
	} else {
		a.printStat(tiers)
	}
	return usage.RemoteErr
}

func (a *app) tierStat(name string, u diskstore.RootTierUsage) tierStat {
	s := tierStat{
		Tier: name, Root: u.Root, Pages: u.Pages, Tails: u.Tails, PageBytes: u.Bytes,
		Temp: u.TempFiles, TempBytes: u.TempBytes, Quarantined: u.QuarantineFiles, QuarBytes: u.QuarantineBytes,
		Models: len(u.Fingerprints), Processes: u.Processes, Hits: u.Hits.Pages, LastHit: lastHit(u.Hits),
		DiskBytes: u.Space.Total, DiskFree: u.Space.Free, Written: []writtenOnDay{},
	}
	for _, use := range u.Fingerprints {
		if _, lossy := tier.LossyOf(use.Fingerprint, use.Identity); lossy {
			s.Lossy += use.Pages + use.Tails
		}
	}
	if !u.Counted.IsZero() {
		s.Booked = &u.Booked
	}
	if a.budgetOf[name] {
		budget := a.budget(name)
		s.Budget = &budget
	}
	for _, day := range u.Written {
		s.Written = append(s.Written, writtenOnDay(day))
	}
	return s
}

// printStat prints one column for each tier. Lossy pages have a row where there are any.
func (a *app) printStat(tiers []tierStat) {
	header := []string{""}
	rows := [][]string{{"root"}, {"budget"}, {"pages"}, {"tails"}, {"lossy"}, {"size"}, {"booked"}, {"temporary"}, {"quarantine"}, {"models"}, {"hits"}, {"processes"}, {"disk free"}}
	for _, t := range tiers {
		header = append(header, map[string]string{tier.Local: "LOCAL", tier.Remote: "REMOTE"}[t.Tier])
		for i, cell := range t.cells() {
			rows[i] = append(rows[i], cell)
		}
	}
	if !slices.ContainsFunc(tiers, func(t tierStat) bool { return t.Lossy > 0 }) {
		rows = slices.DeleteFunc(rows, func(row []string) bool { return row[0] == "lossy" })
	}
	a.table(header, rows)
	if rows := writtenRows(tiers); len(rows) > 0 {
		header[0] = "WRITTEN"
		fmt.Fprintln(a.stdout)
		a.table(header, rows)
	}
}

func (t tierStat) cells() []string {
	if t.Error != "" {
		return []string{t.Root, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"}
	}
	return []string{
		t.Root, budgetText(t.Budget), count(t.Pages), count(t.Tails), count(t.Lossy), humanBytes(t.PageBytes), bookedText(t.Booked),
		fmt.Sprintf("%s, %s", plural(t.Temp, "file"), humanBytes(t.TempBytes)),
		fmt.Sprintf("%s, %s", plural(t.Quarantined, "file"), humanBytes(t.QuarBytes)),
		count(t.Models), hitsText(t.Hits, t.LastHit), count(t.Processes),
		fmt.Sprintf("%s of %s", humanBytes(t.DiskFree), humanBytes(t.DiskBytes)),
	}
}

func hitsText(n int64, last *time.Time) string {
	if last == nil {
		return count(n)
	}
	return fmt.Sprintf("%s, the last %s", count(n), format.HumanTimeLower(*last, ""))
}

func bookedText(booked *int64) string {
	if booked == nil {
		return "not counted yet"
	}
	return humanBytes(*booked)
}

func budgetText(budget *int64) string {
	switch {
	case budget == nil:
		return "not known here"
	case *budget == 0:
		return "all but 5% of the disk"
	}
	return humanBytes(*budget)
}

// writtenRows has a row for each of the last days with writes, the latest first.
func writtenRows(tiers []tierStat) [][]string {
	var days []string
	for _, t := range tiers {
		for _, w := range t.Written {
			days = append(days, w.Day)
		}
	}
	slices.SortFunc(days, func(a, b string) int { return cmp.Compare(b, a) })
	days = slices.Compact(days)
	var rows [][]string
	for _, day := range days[:min(len(days), shownDays)] {
		row := []string{day}
		for _, t := range tiers {
			var n int64
			for _, w := range t.Written {
				if w.Day == day {
					n += w.Bytes
				}
			}
			row = append(row, humanBytes(n))
		}
		rows = append(rows, row)
	}
	return rows
}
