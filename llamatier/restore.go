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
	refs := t.opt.Store.Chain(ctx, tokens, nil)
	n := 0
	for _, ref := range refs {
		n += ref.Tokens
	}
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

func (t *Tier) tryRestore(ctx context.Context, s *slot, tokens []int32, refs []diskstore.Ref) error {
	f, name, err := newMemFile()
	if err != nil {
		return err
	}
	if err := t.build(ctx, f, tokens, refs); err != nil {
		return t.drop(f, err)
	}
	s.tokens, s.prompt, s.dirty, s.tails = nil, 0, false, false
	s.private, s.broken = false, true // until the engine has answered
	if err := t.opt.Engine.Restore(ctx, s.id, name); err != nil {
		return t.drop(f, err)
	}
	s.tokens, s.broken = tokens, false
	f.Close() // nothing is lost: the file is memory
	return nil
}

// build writes the file of a sequence from stored pages.
func (t *Tier) build(ctx context.Context, f io.WriterAt, tokens []int32, refs []diskstore.Ref) error {
	b, err := t.opt.Shape.Build(f, tokens, 0)
	if err != nil {
		return err
	}
	var buf []byte
	for _, ref := range refs {
		start := int(ref.Start)
		stored, err := pagefile.NewLayout(t.opt.Shape.Sections(), ref.Stored)
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
		if err := b.WriteFirstRows(stored, start, ref.Tokens, page); err != nil {
			return err
		}
	}
	return nil
}
