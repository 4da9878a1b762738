package llamatier

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// restoreMin is the least number of tokens for which a slot is replaced.
const restoreMin = 64

// restore puts stored pages of a prompt into a busy slot, and returns the number of tokens
// that the slot did not hold before.
func (t *Tier) restore(ctx context.Context, s *slot, tokens []int32) int {
	held := commonPrefix(s.tokens, tokens)
	if held < len(s.tokens) {
		t.save(ctx, s, true) // the engine is about to drop tokens
	}
	began := time.Now()
	refs, n := t.find(ctx, tokens)
	if n < held+restoreMin {
		return 0
	}
	t.save(ctx, s, true)
	if err := t.tryRestore(ctx, s, tokens[:n], refs); err != nil {
		t.opt.Log.Warn("kv tier: pages not restored, the prompt is computed", "slot", s.id, "error", err)
		return 0
	}
	t.opt.Log.Info("kv tier: restored", "slot", s.id, "tokens", n, "prompt", len(tokens), "took", time.Since(began))
	return n - held
}

// find returns the stored pages of a prompt after which the engine can go on, and the number
// of their tokens.
func (t *Tier) find(ctx context.Context, tokens []int32) (refs []diskstore.Ref, n int) {
	if !t.opt.Shape.HasEnd() {
		refs = t.opt.Store.Chain(ctx, tokens, nil)
		for _, ref := range refs {
			n += ref.Tokens
		}
		return refs, n
	}
	// The engine computes at least one token, and cannot take one back.
	tokens = tokens[:max(0, len(tokens)-1)]
	refs = t.opt.Store.Chain(ctx, tokens, nil)
	for i := len(refs) - 1; i >= 0 && ctx.Err() == nil; i-- {
		ref := refs[i]
		candidates := t.opt.Store.TailsWithin(ctx, ref.Parent, int(ref.Start), tokens[ref.Start:], nil)
		if !ref.Tail {
			candidates = append([]diskstore.Ref{ref}, candidates...)
		}
		for _, c := range candidates {
			end := int(c.Start) + c.Tokens
			if end <= t.opt.Window {
				return nil, 0 // see llamastate.Shape.Build
			}
			if layout, err := t.opt.Store.LayoutOf(ctx, c); err == nil && layout.HasState() {
				return append(refs[:i:i], c), end
			}
		}
	}
	return nil, 0
}

func (t *Tier) tryRestore(ctx context.Context, s *slot, tokens []int32, refs []diskstore.Ref) error {
	if err := t.fits(len(tokens)); err != nil {
		return err
	}
	f, name, err := newMemFile()
	if err != nil {
		return err
	}
	if err := t.build(ctx, f, tokens, refs); err != nil {
		return t.drop(f, err)
	}
	s.tokens, s.prompt, s.ended, s.dirty, s.tails = nil, 0, 0, false, false
	s.private, s.broken, s.judged = false, true, true // until the engine has answered
	if err := t.opt.Engine.Restore(ctx, s.id, name); err != nil {
		return t.drop(f, err)
	}
	t.mu.Lock()
	s.unknown = t.unknown > 0
	t.mu.Unlock()
	s.tokens, s.ended, s.broken = tokens, len(tokens), false
	f.Close() // nothing is lost: the file is memory
	return nil
}

// build writes the file of a sequence from stored pages.
func (t *Tier) build(ctx context.Context, f io.WriterAt, tokens []int32, refs []diskstore.Ref) error {
	b, err := t.opt.Shape.Build(f, tokens, t.opt.Window)
	if err != nil {
		return err
	}
	var buf []byte
	for _, ref := range refs {
		start := int(ref.Start)
		sections := t.opt.Shape.Sections()
		if start+ref.Tokens == len(tokens) {
			sections = t.opt.Shape.EndSections(b.WindowRows())
		}
		stored, err := pagefile.NewLayout(sections, ref.Stored)
		if err != nil {
			return err
		}
		if cap(buf) < stored.Size() {
			buf = make([]byte, stored.Size())
		}
		page := buf[:stored.Size()]
		if err := t.opt.Store.Read(ctx, ref, tokens[start:start+ref.Tokens], stored, page); err != nil {
			return fmt.Errorf("read the page of tokens %d to %d: %w", start, start+ref.Tokens, err)
		}
		if err := b.WriteRows(stored, start, ref.Tokens, page); err != nil {
			return err
		}
	}
	return nil
}
