package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/show"
)

// reasons is the output of why --json.
type reasons struct {
	Root    string            `json:"root"`
	Live    bool              `json:"live"`
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

const defaultMisses = 5

func newWhyCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	n := defaultMisses
	var noText, all bool
	cmd := &cobra.Command{
		Use:   "why [MODEL]",
		Short: "Say why prompts were computed although kvtier is on",
		Long: `Say why the latest prompts computed more than they had to, the newest first, and
which text changes in every request.

Positions count tokens from 0. The text around the place where a prompt parts
from an earlier one is shown to the server's user alone, for requests of this
namespace (OLLAMA_KV_TIER_NAMESPACE) that may be stored, and if the model's file
is in Ollama's model store. The server keeps text in files of its own directory,
and kvtier rm MODEL removes it.`,
		Example: `  kvtier why
  kvtier why qwen3:4b -n 20 --no-text`,
		Args: cli.Args(0, 1, "name one model, or none for all; see kvtier why --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > telemetry.StatePromptsMax {
				return cli.BadValue(cmd.Flags().Lookup("count"), fmt.Sprint(n))
			}
			read, hidden := at.stateWithWords, ""
			if noText {
				read, hidden = at.state, hiddenByFlag
			}
			s, err := read(cmd.Context())
			if err != nil {
				return err
			}
			text := newReader(models, at.config.Namespace, hidden)
			found, err := reasonsIn(s, models.names(), append(args, "")[0], n, all, text)
			if err != nil {
				return err
			}
			found.Root = at.config.Local
			return out.show(found, found.print)
		},
	}
	cmd.Flags().IntVarP(&n, "count", "n", n, "how many prompts to list")
	cli.Give(cmd.Flags(), "count", fmt.Sprintf("1 to %d", telemetry.StatePromptsMax))
	cmd.Flags().BoolVar(&all, "all", false, "also list prompts whose computed text is new")
	cmd.Flags().BoolVar(&noText, "no-text", false, "show positions only, no text of prompts")
	return cmd
}

// reasonsIn finds n reasons in a state: of all models, or of the wanted one. With all, new text is
// listed, too.
func reasonsIn(s telemetry.State, names modelNames, wanted string, n int, all bool, r *reader) (reasons, error) {
	out := reasons{Live: s.Live, Since: s.Since, Busters: []buster{}, Misses: []miss{}, NotStored: []notStored{}}
	keep, err := keepModel(s, names, wanted)
	if err != nil {
		return out, err
	}
	for _, p := range show.Processes(s, names.nameOf) {
		if p.Unstored != nil && keep(p.Weights) {
			out.NotStored = append(out.NotStored, notStored{p.Model, p.PID, *p.Unstored})
		}
	}
	for _, b := range show.Busters(s, names.nameOf, keep) {
		out.Busters = append(out.Busters, buster{b, show.BusterAdvice, r.buster(b)})
	}
	isNew := func(p telemetry.StatePrompt) bool {
		return p.Miss != nil && p.Miss.Cause == telemetry.CauseNeverSeen && !all && keep(p.Weights)
	}
	listed := func(p telemetry.StatePrompt) bool { return keep(p.Weights) && !isNew(p) }
	for _, m := range show.Misses(s, names.nameOf, time.Now(), n, listed) {
		out.Misses = append(out.Misses, miss{m, r.miss(m)})
	}
	for _, p := range s.Prompts {
		if isNew(p) {
			out.New++
		}
	}
	others := func(m telemetry.ModelState) bool { return !keep(m.Model.Weights) }
	out.Causes = show.CauseTotals(slices.DeleteFunc(slices.Clone(s.Models), others))
	return out, nil
}

// stateWithWords reads the state, with the text that this user may see.
func (at *storage) stateWithWords(ctx context.Context) (telemetry.State, error) {
	return at.readState(ctx, func(ctx context.Context) (telemetry.State, error) {
		return collect.ReadWords(ctx, at.config.Local, at.config.Namespace)
	})
}

func (out reasons) print(w io.Writer) {
	now := time.Now()
	for _, n := range out.NotStored {
		fmt.Fprintf(w, "%s, process %d\n", oneLine(n.Model), n.PID)
		printUnstored(w, &n.Unstored, now)
		fmt.Fprintln(w)
	}
	for _, b := range out.Busters {
		b.print(w)
	}
	for _, m := range out.Misses {
		m.print(w, now)
		fmt.Fprintln(w)
	}
	if len(out.Misses) == 0 {
		fmt.Fprintln(w, "No recent prompt computed more than it had to.")
	}
	if out.New > 0 {
		fmt.Fprintf(w, "%s of new text left out; --all lists them.\n", plural(out.New, "prompt"))
	}
	if len(out.Causes) == 0 {
		return
	}
	if len(out.Misses) == 0 || out.New > 0 {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "All since %s:\n", since(out.Since))
	printNarrow(w, []string{"CAUSE", "PROMPTS", "TOKENS COMPUTED"}, rowsOf(out.Causes, func(c show.CauseTotal) []string {
		return []string{string(c.Cause), count(c.Prompts), count(c.Tokens)}
	}))
}

func (b buster) print(w io.Writer) {
	text := "."
	if b.Text != nil {
		text = ":\n    " + b.Text.is()
	}
	fmt.Fprintf(w, "%s in every request%s\n", show.Changing(b.Begin, b.End), text)
	paragraph(w, fmt.Sprintf("%s: in %s in a row; %s behind this place were computed again although they were the same.",
		b.Model, plural(b.Prompts, "request"), plural(b.Lost, "token")))
	paragraph(w, b.Advice)
	b.printHidden(w)
	fmt.Fprintln(w)
}

func (m miss) print(w io.Writer, now time.Time) {
	fmt.Fprintf(w, "%s, %s, slot %d\n", show.Ago(m.Time, now), oneLine(m.Model), m.Slot)
	paragraph(w, fmt.Sprintf("%s: %s in the slot, %s restored, %s computed.",
		plural(m.Tokens, "token"), count(m.InSlot), count(m.Restored), count(m.Computed)))
	paragraph(w, m.Because)
	if m.Text != nil {
		fmt.Fprintf(w, "    was  %s\n    is   %s\n", m.Text.was(), m.Text.is())
	}
	m.printHidden(w)
	if m.Text != nil && m.Text.Was != "" && m.Text.Was == m.Text.Is {
		paragraph(w, "Both texts are the same in other tokens: an answer that a program sends back is split anew.")
		return
	}
	paragraph(w, m.Remedy)
}

func (t words) printHidden(w io.Writer) {
	if t.Hidden != "" && t.Hidden != hiddenByFlag {
		paragraph(w, "The text is not shown: "+t.Hidden+".")
	}
}

// hiddenByFlag is the reason of a user who wants no text.
const hiddenByFlag = "--no-text"

// words is the text around a place, or the reason why it is not shown. Both are empty where the
// cause of a miss has no text.
type words struct {
	Text   *parted `json:"text"`
	Hidden string  `json:"text_hidden,omitempty"`
}

// parted is the text of two prompts around the place where they part. Before is that of the
// later prompt; it is the same in both, except where a place is known to change.
type parted struct {
	Before   string `json:"before"`
	Was      string `json:"was"`
	AfterWas string `json:"after_was"`
	Is       string `json:"is"`
	AfterIs  string `json:"after_is"`
}

// Lengths of a line of text, in characters: of the part that differs, and of its surroundings.
const (
	beforeRunes = 26
	changeRunes = 28
	afterRunes  = 10
)

func (p parted) was() string { return quote(p.Before, p.Was, p.AfterWas) }
func (p parted) is() string  { return quote(p.Before, p.Is, p.AfterIs) }

// quote is a line of text with a mark around the part that differs.
func quote(before, change, after string) string {
	return `"` + last(excerpt(before), beforeRunes) + "«" + first(excerpt(change), changeRunes) + "»" + first(excerpt(after), afterRunes) + `"`
}

func first(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n]) + "…"
}

func last(s string, n int) string {
	if extra := utf8.RuneCountInString(s) - n; extra > 0 {
		return "…" + string([]rune(s)[extra:])
	}
	return s
}

type reader struct {
	store     *modelStore
	namespace string             // of this user
	hidden    string             // reason why no text is known
	models    map[string]decoder // by their weights
}

// decoder reads the tokens of a model, or has the reason why it cannot.
type decoder struct {
	*modelfile.Decoder
	err error
}

func newReader(store *modelStore, namespace, hidden string) *reader {
	return &reader{store: store, namespace: namespace, hidden: hidden, models: make(map[string]decoder)}
}

// miss is the text of a miss. Only some causes are about a place where text differs.
func (r *reader) miss(m show.Miss) words {
	if m.Words == nil && m.Cause != telemetry.CauseDiffers {
		return words{}
	}
	unknown := oneIsPrivate
	if m.Detail != "" { // the other text is not that of a recent prompt
		unknown = "the text differs " + m.Detail + ", of which no recent request is in memory"
	}
	return r.words(m.Weights, m.Namespace, m.Private, m.Words, unknown, func(w telemetry.Words) show.Parting { return show.Part(w) })
}

func (r *reader) buster(b show.Buster) words {
	return r.words(b.Weights, b.Namespace, false, b.Words, oneIsPrivate, func(w telemetry.Words) show.Parting { return show.PartAt(w, b.Begin, b.End) })
}

// oneIsPrivate is the reason for which tokens of a recent request are not known.
const oneIsPrivate = "one of the two requests is private (kv_store: false)"

// words is the text of tokens; unknown is the reason where there are none.
func (r *reader) words(weights, namespace string, private bool, w *telemetry.Words, unknown string, part func(telemetry.Words) show.Parting) words {
	switch {
	case r.hidden != "":
		return words{Hidden: r.hidden}
	case namespace != r.namespace:
		return words{Hidden: fmt.Sprintf("the request has the namespace %q, and this user asks with %q (OLLAMA_KV_TIER_NAMESPACE)", namespace, r.namespace)}
	case private:
		return words{Hidden: "the request is private (kv_store: false)"}
	case w == nil:
		return words{Hidden: unknown}
	}
	d, known := r.models[weights]
	if !known {
		if path := r.store.blob(weights); path == "" {
			d.err = fmt.Errorf("the model's file is not in %s; name Ollama's models with --models", r.store.dir())
		} else {
			d.Decoder, d.err = modelfile.OpenDecoder(path)
		}
		r.models[weights] = d
	}
	if d.err != nil {
		return words{Hidden: d.err.Error()}
	}
	text, err := textOfParts(d.Decoder, part(*w))
	if err != nil {
		return words{Hidden: err.Error()}
	}
	return words{Text: text}
}

// textOfParts decodes each part by itself: a character that a boundary cuts in two is replaced.
func textOfParts(d *modelfile.Decoder, p show.Parting) (*parted, error) {
	var out parted
	for _, part := range []struct {
		tokens []int32
		text   *string
	}{{p.Before, &out.Before}, {p.Was, &out.Was}, {p.AfterWas, &out.AfterWas}, {p.Is, &out.Is}, {p.AfterIs, &out.AfterIs}} {
		text, err := d.Text(part.tokens)
		if err != nil {
			return nil, err
		}
		*part.text = text
	}
	return &out, nil
}
