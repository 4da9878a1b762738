package main

import (
	"fmt"
	"unicode/utf8"

	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

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

// quoted is the end of a sentence, with the text of a buster.
func (b buster) quoted() string {
	if b.Text == nil {
		return "."
	}
	return ":\n    " + b.Text.is()
}

// reader turns tokens into text.
type reader struct {
	store     *modelStore
	namespace string // of this user
	hidden    string // reason why no text is known
	models    map[string]*modelfile.Decoder
	errs      map[string]string // reasons why a model's tokens cannot be read
}

func newReader(store *modelStore, namespace, hidden string) *reader {
	return &reader{store: store, namespace: namespace, hidden: hidden, models: make(map[string]*modelfile.Decoder), errs: make(map[string]string)}
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
	d, why := r.decoder(weights)
	if d == nil {
		return words{Hidden: why}
	}
	text, err := textOfParts(d, part(*w))
	if err != nil {
		return words{Hidden: err.Error()}
	}
	return words{Text: text}
}

// decoder returns the decoder of a model, or the reason why there is none.
func (r *reader) decoder(weights string) (*modelfile.Decoder, string) {
	if d := r.models[weights]; d != nil || r.errs[weights] != "" {
		return d, r.errs[weights]
	}
	path := r.store.blob(weights)
	if path == "" {
		r.errs[weights] = "the model's file is not in " + r.store.dir() + "; name Ollama's models with --models"
		return nil, r.errs[weights]
	}
	d, err := modelfile.OpenDecoder(path)
	if err != nil {
		r.errs[weights] = err.Error()
		return nil, r.errs[weights]
	}
	r.models[weights] = d
	return d, ""
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
