package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// residency is the output of ps --json.
type residency struct {
	Root  string    `json:"root"`
	At    time.Time `json:"at"`
	Since time.Time `json:"since"` // when the totals began
	Live  bool      `json:"live"`

	Processes []show.Process `json:"processes"`
	Models    []modelUse     `json:"models"`
	PagesErr  string         `json:"pages_error,omitempty"` // reason why pages are null

	counted bool // pages were asked for; else their columns are left out
}

// modelUse is a model, with its pages in all tiers; null where they could not be counted.
type modelUse struct {
	show.Model
	Pages *int   `json:"pages"`
	Tails *int   `json:"tails"`
	Bytes *int64 `json:"bytes"`
}

func newResidencyCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	return &cobra.Command{
		Use:   "ps",
		Short: "Show the slots of loaded models, and the time that kvtier saved",
		Long: `Show the slots of loaded models, and the totals of all models.

HOT, WARM, COLD and REMOTE count the pages of a slot's conversation in the slot
itself, in the RAM tier, on the local disk and on the share; a page may be in
several. HOT is the K/V in the engine's memory, in pages, rounded up: layers with
a window hold less than the conversation, and pages on a spill disk do not count.
A slot whose context was shifted is stored up to the kept part only, and one with
lossy pages up to the first of these.

REUSED is the share of the tokens of prompts that were not computed, and the
number of all these tokens, new text included. SAVED is an estimate: the time
that the prompts would have taken without restored tokens, less the time that
they took. - is a number that a server cannot know, such as the pages of a slot
by tier under llama-server.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := at.state(cmd.Context())
			if err != nil {
				return err
			}
			use := residencyOf(at.config.Local, s, models.names().nameOf)
			if len(use.Models) > 0 {
				use.countPages(at.usage(cmd.Context()))
			}
			err = out.show(use, func(w io.Writer) { printResidency(w, use) })
			if use.PagesErr != "" && !out.asJSON {
				fmt.Fprintln(out.stderr, "pages could not be counted: "+oneLine(use.PagesErr))
			}
			return err
		},
	}
}

// residencyOf is a state of a root whose pages are not counted yet.
func residencyOf(root string, s telemetry.State, name show.Name) residency {
	out := residency{
		Root: root, At: s.At, Since: s.Since, Live: s.Live,
		Processes: show.Processes(s, name), Models: []modelUse{},
	}
	for _, m := range show.Models(s, name) {
		out.Models = append(out.Models, modelUse{Model: m})
	}
	return out
}

// countPages sets the pages of models, unless they could not be counted in all tiers.
func (out *residency) countPages(usage diskstore.RootUsage, err error) {
	out.counted = true
	if err = cmp.Or(err, usage.RemoteErr); err != nil {
		out.PagesErr = err.Error()
		return
	}
	for i := range out.Models {
		m := &out.Models[i]
		var pages, tails int
		var bytes int64
		for _, in := range []diskstore.RootTierUsage{usage.Local, usage.Remote} {
			for _, use := range in.Fingerprints {
				if isOf(use.Identity, m.Model) {
					pages, tails, bytes = pages+use.Pages, tails+use.Tails, bytes+use.Bytes
				}
			}
		}
		m.Pages, m.Tails, m.Bytes = &pages, &tails, &bytes
	}
}

// isOf reports whether pages of an identity are those of a model. Only the daemon before a
// llama-server gives an identity a shape.
func isOf(identity map[string]string, m show.Model) bool {
	engine := telemetry.EngineOllama
	if identity[tierenv.KeyShape] != "" {
		engine = telemetry.EngineLlama
	}
	return identity[tierenv.KeyWeights] == m.Weights && identity[tierenv.KeyNamespace] == m.Namespace && engine == m.Engine
}

func printResidency(w io.Writer, out residency) {
	now := time.Now()
	if len(out.Processes) == 0 {
		fmt.Fprintln(w, "No model is loaded.")
	}
	for i, p := range out.Processes {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printSlots(w, p, now)
	}
	if len(out.Models) == 0 {
		fmt.Fprintf(w, "No model was used since %s; ask a model of the server something.\n", since(out.Since))
		return
	}
	fmt.Fprintln(w)
	printModels(w, out, now)
}

func since(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

func printSlots(w io.Writer, p show.Process, now time.Time) {
	title := fmt.Sprintf("%s on %s, process %d", p.Model, p.Engine, p.PID)
	if p.CacheType != "" {
		title += ", cache " + p.CacheType
	}
	if p.Namespace != "" {
		title += ", namespace " + p.Namespace
	}
	if now.Sub(p.At) > telemetry.SilentAfter {
		title += ", last heard of " + show.Ago(p.At, now)
	}
	wrapped(w, "", title)
	printUnstored(w, p.Unstored, now)
	if paging := p.Paging(); paging != "" {
		wrapped(w, "", paging)
	}
	for _, e := range p.Elastic {
		wrapped(w, "", e.Says())
	}
	if len(p.Slots) == 0 {
		if p.Unstored == nil {
			fmt.Fprintln(w, "No slot is in use.")
		}
		return
	}
	printNarrow(w, []string{"SLOT", "TOKENS", "HOT", "WARM", "COLD", "REMOTE", "ROWS", "NOW", "LAST RESTORE", "SAVED"}, rowsOf(p.Slots, func(s show.Slot) []string {
		restored := "-"
		if s.LastRestore != nil {
			restored = count(s.Restored) + ", " + show.Ago(*s.LastRestore, now)
		}
		return []string{
			fmt.Sprint(s.Slot), count(s.Tokens), count(s.Hot), show.Pages(s.Warm), show.Pages(s.Cold), show.Pages(s.Remote),
			s.Rows(), s.Now(), restored, show.Seconds(s.SavedSeconds),
		}
	}))
}

// printUnstored says why conversations of a process are not stored, if they are not.
func printUnstored(w io.Writer, u *show.Unstored, now time.Time) {
	if u == nil {
		return
	}
	paragraph(w, u.Says(now))
	paragraph(w, u.Remedy)
}

func printModels(w io.Writer, out residency, now time.Time) {
	header := []string{"MODEL", "REUSED", "PAGES", "SIZE", "RESTORED", "SAVED", "USED"}
	const pagesAt, restoredAt = 2, 4
	var rows [][]string
	for _, m := range out.Models {
		model, pages, size, used := m.Model.Model, "-", "-", "never"
		if m.Namespace != "" {
			model += " (" + m.Namespace + ")"
		}
		if m.Pages != nil {
			pages, size = count(*m.Pages+*m.Tails), humanBytes(*m.Bytes)
		}
		if m.LastUsed != nil {
			used = show.Ago(*m.LastUsed, now)
		}
		rows = append(rows, []string{
			model, show.ReusedOf(m.Reused, m.Tokens), pages, size, count(m.Restored), show.Seconds(m.SavedSeconds), used,
		})
	}
	if !out.counted {
		header = slices.Delete(header, pagesAt, restoredAt)
		for i := range rows {
			rows[i] = slices.Delete(rows[i], pagesAt, restoredAt)
		}
	}
	printNarrow(w, header, rows)
	fmt.Fprintf(w, "\nTotals since %s. SAVED is an estimate.\n", since(out.Since))
}
