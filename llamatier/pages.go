package llamatier

import (
	"context"
	"errors"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry"
)

type positions struct{ start, end int }

// overlap reports whether some of these positions are from start to end.
func (p positions) overlap(start, end int) bool { return start < p.end && p.start < end }

// pages stores the pages of saved slots.
type pages struct {
	store *disk
	form  form
	meter *telemetry.Meter
}

// minTail is the part of a page below which an incomplete last page is not stored.
const minTail = 32

// put stores the full pages of a saved slot that the store does not have, and tails that
// end after some numbers of tokens. The file has no rows of dropped positions.
func (p *pages) put(ctx context.Context, state *llamastate.File, tails []int, dropped positions) error {
	size := p.form.pageTokens
	parent := p.form.root
	for start := 0; start < len(state.Tokens); start += size {
		ends := []int{start + size}
		for _, end := range tails {
			least := 1
			if !p.form.shape.HasEnd() {
				least = max(1, size/minTail)
			}
			if end-start >= least && end-start < size && !slices.Contains(ends, end) {
				ends = append(ends, end)
			}
		}
		var next pagefile.Key
		for _, end := range ends {
			if end > len(state.Tokens) {
				continue
			}
			tokens := state.Tokens[start:end]
			key := pagefile.ChainKey(parent, tokens, nil)
			if end == start+size {
				next = key
			}
			if has, _ := p.store.Has(ctx, key); has {
				continue
			}
			if dropped.overlap(start, end) {
				return errors.New("a page was removed meanwhile") // nobody would find those behind it
			}
			if err := p.putOne(ctx, state, parent, start, tokens); err != nil {
				return err
			}
		}
		parent = next
	}
	return nil
}

func (p *pages) putOne(ctx context.Context, state *llamastate.File, parent pagefile.Key, start int, tokens []int32) error {
	sections := p.form.shape.Sections()
	if start+len(tokens) == len(state.Tokens) && state.End() {
		sections = p.form.shape.EndSections(state.WindowRows())
	}
	layout, err := pagefile.NewLayout(sections, len(tokens))
	if err != nil {
		return err
	}
	page := &pagefile.Page{Parent: parent, Start: uint32(start), Tokens: tokens, Layout: layout, Payload: make([]byte, layout.Size())}
	if err := state.ReadRows(layout, start, page.Payload); err != nil {
		return err
	}
	if err = p.store.put(ctx, page); err != nil {
		p.meter.Add("ollama_kv_dropped_pages_total", 1)
		if !errors.Is(err, steady.ErrHung) {
			err = told{err}
		}
		return err
	}
	kind := "page"
	if len(tokens) < p.form.pageTokens {
		kind = "tail"
	}
	p.meter.Add(telemetry.Series("ollama_kv_sealed_pages_total", "kind", kind), 1)
	return nil
}

// stored returns the first of some tokens, those whose pages are stored.
func (p *pages) stored(ctx context.Context, tokens []int32) []int32 {
	size, parent := p.form.pageTokens, p.form.root
	for start := 0; ; start += size {
		if start+size > len(tokens) || ctx.Err() != nil {
			return tokens[:start]
		}
		key := pagefile.ChainKey(parent, tokens[start:start+size], nil)
		if has, _ := p.store.Has(ctx, key); !has {
			return tokens[:start]
		}
		parent = key
	}
}
