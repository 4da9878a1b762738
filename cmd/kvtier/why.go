package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/show"
)

// reasons is the output of why --json.
type reasons struct {
	Root    string            `json:"root"`
	Live    bool              `json:"live"`  // a collector runs
	Since   time.Time         `json:"since"` // when the totals by cause began
	Busters []buster          `json:"busters"`
	Misses  []miss            `json:"misses"`
	New     int               `json:"new_text"` // recent prompts of new text, which are not among Misses
	Causes  []show.CauseTotal `json:"causes"`

	NotStored []notStored `json:"not_stored"` // loaded models whose conversations are not stored
}

type notStored struct {
	Model string `json:"model"`
	PID   int    `json:"pid"`
	show.Unstored
}

type buster struct {
	show.Buster
	Advice string `json:"advice"`
	words
}

type miss struct {
	show.Miss
	words
}

// whyFlags are the flags of why.
type whyFlags struct {
	n           int
	noText, all bool
}

// defaultMisses is the number of prompts that why lists.
const defaultMisses = 5

func newWhyCommand(a *app) *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:   "why [MODEL]",
		Short: "Say why prompts were computed although kvtier is on",
		Long: `Say why the latest prompts computed more than they had to, the newest first, and
which text changes in every request.

Positions count tokens from 0. The text around the place where a prompt parts
from an earlier one is shown to the server's user alone, while a collector runs, for
requests of this namespace (OLLAMA_KV_TIER_NAMESPACE) that may be stored, and if
the model's file is in Ollama's model store. The server
keeps text in files of its own directory, and kvtier rm MODEL removes it.`,
		Example: `  kvtier why
  kvtier why qwen3:4b -n 20 --no-text`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] == "" {
				return cli.Usagef("name one model, or none for all; see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.n < 1 || f.n > telemetry.StatePromptsMax {
				return cli.BadValue(cmd.Flags().Lookup("count"), fmt.Sprint(f.n))
			}
			return a.why(cmd.Context(), append(args, "")[0], f)
		},
	}
	cmd.Flags().IntVarP(&f.n, "count", "n", defaultMisses, "how many prompts to list")
	cli.Give(cmd.Flags(), "count", fmt.Sprintf("1 to %d", telemetry.StatePromptsMax))
	cmd.Flags().BoolVar(&f.all, "all", false, "also list prompts whose computed text is new")
	cmd.Flags().BoolVar(&f.noText, "no-text", false, "show positions only, no text of prompts")
	return cmd
}

func (a *app) why(ctx context.Context, model string, f whyFlags) error {
	s, hidden, err := a.stateWithWords(ctx, f.noText)
	if err != nil {
		return err
	}
	names := a.names()
	keep, err := a.keepModel(s, names, model)
	if err != nil {
		return err
	}
	out := reasons{Root: a.config.Local, Live: s.Live, Since: s.Since, Busters: []buster{}, Misses: []miss{}, NotStored: []notStored{}}
	for _, p := range show.Processes(s, names.nameOf) {
		if p.Unstored != nil && keep(p.Weights) {
			out.NotStored = append(out.NotStored, notStored{p.Model, p.PID, *p.Unstored})
		}
	}
	r := newReader(a, hidden)
	for _, b := range show.Busters(s, names.nameOf, keep) {
		out.Busters = append(out.Busters, buster{b, show.BusterAdvice, r.buster(b)})
	}
	isNew := func(p telemetry.StatePrompt) bool {
		return p.Miss != nil && p.Miss.Cause == telemetry.CauseNeverSeen && !f.all && keep(p.Weights)
	}
	listed := func(p telemetry.StatePrompt) bool { return keep(p.Weights) && !isNew(p) }
	for _, m := range show.Misses(s, names.nameOf, time.Now(), f.n, listed) {
		out.Misses = append(out.Misses, miss{m, r.miss(m)})
	}
	for _, p := range s.Prompts {
		if isNew(p) {
			out.New++
		}
	}
	var models []telemetry.ModelState
	for _, m := range s.Models {
		if keep(m.Model.Weights) {
			models = append(models, m)
		}
	}
	out.Causes = show.CauseTotals(models)
	if a.asJSON {
		return a.json(out)
	}
	a.printReasons(out)
	return nil
}

// stateWithWords reads the state, with the text that this user may see. hidden is the reason why
// there is none.
func (a *app) stateWithWords(ctx context.Context, noText bool) (s telemetry.State, hidden string, err error) {
	if noText {
		s, err = a.state(ctx)
		return s, "--no-text", err
	}
	s, wordsErr := a.readState(ctx, func(ctx context.Context) (telemetry.State, error) {
		return collect.ReadWords(ctx, a.config.Local, a.config.Namespace)
	})
	if wordsErr == nil {
		return s, "", nil
	}
	s, err = a.state(ctx)
	switch {
	case err != nil:
		return s, "", err
	case !s.Live:
		return s, "no collector runs, and text is shown while one does", nil
	}
	return s, wordsErr.Error(), nil
}

func (a *app) printReasons(out reasons) {
	now := time.Now()
	for _, n := range out.NotStored {
		fmt.Fprintf(a.stdout, "%s, process %d\n", oneLine(n.Model), n.PID)
		printUnstored(a.stdout, &n.Unstored, now)
		fmt.Fprintln(a.stdout)
	}
	for _, b := range out.Busters {
		a.printBuster(b)
	}
	for _, m := range out.Misses {
		a.printMiss(m, now)
		fmt.Fprintln(a.stdout)
	}
	switch {
	case !out.Live: // its file has no prompts
		fmt.Fprintln(a.stdout, "No collector runs, so recent prompts are not known.")
	case len(out.Misses) == 0:
		fmt.Fprintln(a.stdout, "No recent prompt computed more than it had to.")
	}
	if out.New > 0 {
		fmt.Fprintf(a.stdout, "%s of new text left out; --all lists them.\n", plural(out.New, "prompt"))
	}
	if len(out.Causes) == 0 {
		return
	}
	if len(out.Misses) == 0 || out.New > 0 {
		fmt.Fprintln(a.stdout)
	}
	var rows [][]string
	for _, c := range out.Causes {
		rows = append(rows, []string{string(c.Cause), count(c.Prompts), count(c.Tokens)})
	}
	fmt.Fprintf(a.stdout, "All since %s:\n", since(out.Since))
	narrowTable(a.stdout, []string{"CAUSE", "PROMPTS", "TOKENS COMPUTED"}, rows)
}

func (a *app) printBuster(b buster) {
	fmt.Fprintf(a.stdout, "%s in every request%s\n", show.Changing(b.Begin, b.End), b.quoted())
	paragraph(a.stdout, fmt.Sprintf("%s: in %s in a row; %s behind this place were computed again although they were the same.",
		b.Model, plural(b.Prompts, "request"), plural(b.Lost, "token")))
	paragraph(a.stdout, b.Advice)
	a.printHidden(b.words)
	fmt.Fprintln(a.stdout)
}

func (a *app) printMiss(m miss, now time.Time) {
	fmt.Fprintf(a.stdout, "%s, %s, slot %d\n", show.Ago(m.Time, now), oneLine(m.Model), m.Slot)
	paragraph(a.stdout, fmt.Sprintf("%s: %s in the slot, %s restored, %s computed.",
		plural(m.Tokens, "token"), count(m.InSlot), count(m.Restored), count(m.Computed)))
	paragraph(a.stdout, m.Because)
	if m.Text != nil {
		fmt.Fprintf(a.stdout, "    was  %s\n    is   %s\n", m.Text.was(), m.Text.is())
	}
	a.printHidden(m.words)
	if m.Text != nil && m.Text.Was != "" && m.Text.Was == m.Text.Is {
		paragraph(a.stdout, "Both texts are the same in other tokens: an answer that a program sends back is split anew.")
		return
	}
	paragraph(a.stdout, m.Remedy)
}

func (a *app) printHidden(w words) {
	if w.Hidden != "" && w.Hidden != hiddenByFlag {
		paragraph(a.stdout, "The text is not shown: "+w.Hidden+".")
	}
}

// columns is the width of a terminal that output fits where names are not too long.
const columns = 80

// paragraph prints a sentence in indented lines.
func paragraph(w io.Writer, sentence string) {
	const indent = "    "
	for _, line := range show.Wrap(oneLine(sentence), columns-len(indent)) {
		fmt.Fprintln(w, indent+line)
	}
}
