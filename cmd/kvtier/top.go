package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

const (
	topEvery   = time.Second // between two frames
	namesEvery = 10          // frames between two looks for the names of models
)

func newTopCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Watch tiers, slots and the time that kvtier saved",
		Long: `Watch the tiers of a server and the rows of kvtier ps, once a second. Ctrl-C ends
top. A server that stops is waited for.

SHARE is the part of a budget that is in use; OF is - where the budget is all but
5% of the disk. TODAY is what was written since midnight, UTC, and the most that
may be.

Off a terminal top prints once; with --json, the state that the web page shows.`,
		Example: `  kvtier top
  ssh -t gpu sudo kvtier top --root /srv/kv`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file, terminal := terminalOf(out.stdout); terminal && !out.asJSON {
				w := &watch{at: at, models: models}
				return w.draw(cmd.Context(), file)
			}
			s, err := at.state(cmd.Context())
			if err != nil {
				return err
			}
			return out.show(s, func(w io.Writer) { printTop(w, at.config.Local, s, models.names().nameOf) })
		},
	}
}

// terminalOf is the terminal below a printer, if it can move its cursor.
func terminalOf(w io.Writer) (file *os.File, ok bool) {
	if p, isPrinter := w.(printer); isPrinter {
		w = p.w
	}
	file, ok = w.(*os.File)
	return file, ok && progress.IsTerminal(file) && os.Getenv("TERM") != "dumb"
}

type watch struct {
	at     *storage
	models *modelStore
	names  modelNames
	frames int    // so far
	rows   string // of the latest state that could be read
}

// Escape sequences of every terminal since the VT100.
const (
	wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h" // the terminal cuts long lines, or breaks them
	home            = "\x1b[H"
	clearLine       = "\x1b[K"
	clearBelow      = "\x1b[J"
)

// draw draws frames from a terminal's first line on, as far as it reaches, until ctx ends.
func (w *watch) draw(ctx context.Context, out *os.File) error {
	defer fmt.Fprint(out, wrapOn)
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for {
		_, height, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return fmt.Errorf("ask the terminal for its size: %w", err)
		}
		lines := strings.Split(w.frame(ctx), "\n")
		// Behind the last of them is the line of the cursor. A line is cleared before its text, because the
		// cursor may stand on its last character then.
		lines = lines[:min(len(lines), max(0, height-1))]
		if _, err := fmt.Fprint(out, wrapOff, home, clearLine, strings.Join(lines, "\n"+clearLine), "\n", clearBelow); err != nil {
			return fmt.Errorf("draw on the terminal: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *watch) frame(ctx context.Context) string {
	if w.frames%namesEvery == 0 {
		w.names = w.models.names()
	}
	w.frames++
	var head strings.Builder
	fmt.Fprintf(&head, "kvtier top %s  %s\n\n", oneLine(w.at.config.Local), time.Now().Format(time.TimeOnly))
	s, err := w.at.state(ctx)
	if err != nil {
		paragraph(&head, err.Error())
		head.WriteByte('\n')
	} else {
		var rows strings.Builder
		printTop(&rows, w.at.config.Local, s, w.names.nameOf)
		w.rows = rows.String()
	}
	return printable(head.String() + w.rows)
}

// printTop prints the tiers of a state, and below them its models without their pages: counting
// those lists the directories.
func printTop(w io.Writer, root string, s telemetry.State, name show.Name) {
	if len(s.Tiers) == 0 {
		fmt.Fprintln(w, "No process that runs has told of its tiers.")
	} else {
		printNarrow(w, []string{"TIER", "USED", "OF", "SHARE", "PAGES", "TODAY", "STATE"}, rowsOf(s.Tiers, tierRow))
	}
	fmt.Fprintln(w)
	printResidency(w, residencyOf(root, s, name))
}

func tierRow(t telemetry.Tier) []string {
	used := cmp.Or(t.Booked, t.Bytes)
	budget, share, today, state := "-", "-", "-", "ok"
	if t.Budget > 0 {
		budget, share = humanBytes(t.Budget), show.Percent(float64(used)/float64(t.Budget))
	}
	if t.Root != "" { // bytes in memory are not written anywhere
		today = humanBytes(t.WrittenToday)
	}
	if t.WriteCap > 0 {
		today += " of " + humanBytes(t.WriteCap)
	}
	if t.Down {
		state = "down"
	}
	if t.Quarantined > 0 {
		state += ", " + count(t.Quarantined) + " damaged"
	}
	return []string{t.Name, humanBytes(used), budget, share, count(t.Pages), today, state}
}
