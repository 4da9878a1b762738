package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/ollama/ollama/format"
	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/expose"
	"github.com/kvtier/kvtier/telemetry/show"
)

// tierStat is a tier in the output of stat --json. Sizes are in bytes.
type tierStat struct {
	expose.Disk
	Lossy     int            `json:"lossy"` // of pages and tails
	Models    int            `json:"fingerprints"`
	Hits      int64          `json:"hits"`
	LastHit   *time.Time     `json:"last_hit"` // null for never
	Processes int            `json:"processes"`
	Written   []writtenOnDay `json:"written"`
	Error     string         `json:"error,omitempty"` // reason why the other fields are empty
	Engine    bool           `json:"engine"`          // it has no disk of this machine
}

// writtenOnDay is the number of bytes written in one UTC day.
type writtenOnDay struct {
	Day   string `json:"day"`
	Bytes int64  `json:"bytes"`
}

// shownDays is the number of days of writing in the table; JSON has all recorded days.
const shownDays = 7

func newStatCommand(out *output, at *storage) *cobra.Command {
	var prometheus bool
	var file string
	cmd := &cobra.Command{
		Use:   "stat",
		Short: "Show how full the tiers are, and the bytes written per day",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case file != "" && !prometheus:
				return cli.Usagef("--output is for --prometheus; redirect the table")
			case prometheus && out.asJSON:
				return cli.Usagef("--prometheus and --json cannot be had at once")
			}
			usage, err := at.usage(cmd.Context())
			if err != nil {
				return err
			}
			tiers := at.stat(usage)
			if prometheus {
				return errors.Join(at.writeMetrics(cmd.Context(), out.stdout, tiers, file), usage.RemoteErr)
			}
			return cmp.Or(out.show(tiers, func(w io.Writer) { printStat(w, tiers) }), usage.RemoteErr)
		},
	}
	cmd.Flags().BoolVar(&prometheus, "prometheus", false, "print metrics for Prometheus, with those that servers have reported")
	cmd.Flags().StringVarP(&file, "output", "o", "", "with --prometheus: file to replace, such as one of the node exporter's textfile collector")
	cli.Give(cmd.Flags(), "output", giveOutput)
	return cmd
}

func (at *storage) stat(usage diskstore.RootUsage) []tierStat {
	tiers := []tierStat{newTierStat(tier.Local, usage.Local)}
	switch {
	case at.config.Remote == "":
	case usage.RemoteErr != nil:
		tiers = append(tiers, tierStat{Disk: expose.Disk{Tier: tier.Remote, Root: at.config.Remote}, Error: usage.RemoteErr.Error()})
	default:
		tiers = append(tiers, newTierStat(tier.Remote, usage.Remote))
	}
	for i, t := range tiers {
		tiers[i].Engine = t.Tier == tier.Remote && at.config.Address != ""
		if budget := at.budget(t.Tier); at.budgets[t.Tier] && t.Error == "" {
			tiers[i].Budget = &budget
		}
	}
	return tiers
}

func newTierStat(name string, u diskstore.RootTierUsage) tierStat {
	s := tierStat{
		Disk: expose.Disk{
			Tier: name, Root: u.Root, Pages: u.Pages, Tails: u.Tails, PageBytes: u.Bytes,
			TemporaryFiles: u.TempFiles, TemporaryBytes: u.TempBytes, QuarantinedFiles: u.QuarantineFiles, QuarantinedBytes: u.QuarantineBytes,
			Bytes: u.Space.Total, FreeBytes: u.Space.Free,
		},
		Models: len(u.Fingerprints), Processes: u.Processes, Hits: u.Hits.Pages, LastHit: show.Known(u.Hits.Last), Written: []writtenOnDay{},
	}
	for _, use := range u.Fingerprints {
		if _, lossy := tier.LossyOf(use.Fingerprint, use.Identity); lossy {
			s.Lossy += use.Pages + use.Tails
		}
	}
	if !u.Counted.IsZero() {
		s.Booked = &u.Booked
	}
	today := time.Now().UTC().Format(time.DateOnly)
	for _, day := range u.Written {
		s.Written = append(s.Written, writtenOnDay(day))
		if day.Day == today {
			s.WrittenToday = day.Bytes
		}
	}
	return s
}

// printStat prints one column for each tier. Lossy pages have a row where there are any.
func printStat(w io.Writer, tiers []tierStat) {
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
	printTable(w, header, rows)
	if rows := writtenRows(tiers); len(rows) > 0 {
		header[0] = "WRITTEN"
		fmt.Fprintln(w)
		printTable(w, header, rows)
	}
}

func (t tierStat) cells() []string {
	if t.Error != "" {
		return []string{t.Root, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"}
	}
	booked, hits := "not counted yet", count(t.Hits)
	if t.Booked != nil {
		booked = humanBytes(*t.Booked)
	}
	if t.LastHit != nil {
		hits += ", the last " + format.HumanTimeLower(*t.LastHit, "")
	}
	if t.Engine { // the rest is its operator's to see
		budget := budgetText(t.Budget)
		if t.Budget != nil && *t.Budget == 0 {
			budget = "the engine's own"
		}
		return []string{t.Root, budget, count(t.Pages), count(t.Tails), count(t.Lossy), humanBytes(t.PageBytes), booked, "-", "-", count(t.Models), hits, "-", "-"}
	}
	return []string{
		t.Root, budgetText(t.Budget), count(t.Pages), count(t.Tails), count(t.Lossy), humanBytes(t.PageBytes), booked,
		fmt.Sprintf("%s, %s", plural(t.TemporaryFiles, "file"), humanBytes(t.TemporaryBytes)),
		fmt.Sprintf("%s, %s", plural(t.QuarantinedFiles, "file"), humanBytes(t.QuarantinedBytes)),
		count(t.Models), hits, count(t.Processes),
		fmt.Sprintf("%s of %s", humanBytes(t.FreeBytes), humanBytes(t.Bytes)),
	}
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
func writtenRows(tiers []tierStat) (rows [][]string) {
	bytes := make(map[string][]int64) // by day, of each tier
	for i, t := range tiers {
		for _, w := range t.Written {
			if bytes[w.Day] == nil {
				bytes[w.Day] = make([]int64, len(tiers))
			}
			bytes[w.Day][i] += w.Bytes
		}
	}
	days := slices.Sorted(maps.Keys(bytes))
	slices.Reverse(days)
	for _, day := range days[:min(len(days), shownDays)] {
		row := []string{day}
		for _, n := range bytes[day] {
			row = append(row, humanBytes(n))
		}
		rows = append(rows, row)
	}
	return rows
}

// writeMetrics writes the totals that servers have reported, and over them the figures that were
// counted on disk just now, to a file if one is named. Each of both is written without the other
// when that one fails, which is the error.
func (at *storage) writeMetrics(ctx context.Context, w io.Writer, tiers []tierStat, file string) error {
	state, stateErr := collect.Read(ctx, at.config.Local)
	if errors.Is(stateErr, fs.ErrNotExist) {
		stateErr = nil // no server has run since it reports
	}
	opt := expose.Options{Version: version.String()}
	for _, t := range tiers {
		if t.Error == "" {
			opt.Disks = append(opt.Disks, t.Disk)
		}
	}
	text := opt.Text(state)
	if file != "" {
		return errors.Join(at.by.do(func() error { return replaceFile(file, text) }), stateErr)
	}
	_, err := w.Write(text)
	return errors.Join(err, stateErr)
}

// metricsMode lets the node exporter read a new file, which runs as a user of its own. The
// metrics have no text of prompts. A file that is there keeps its mode.
const metricsMode = 0o644

// replaceFile replaces a file of metrics. The textfile collector passes over the file beside it.
func replaceFile(path string, text []byte) error {
	mode := fs.FileMode(metricsMode)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		mode = info.Mode().Perm()
	}
	return writeBeside("metrics", path, nil, func(f *os.File) error {
		_, err := f.Write(text)
		return errors.Join(err, f.Chmod(mode))
	})
}
