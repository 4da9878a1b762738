package evict

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/bench/trace"
	"github.com/kvtier/kvtier/internal/bench/virtual"
)

// policy chooses the order in which pages leave a store.
func policy(o *diskstore.Options, use bool) {
	if !use {
		o.Eviction = diskstore.EvictLRU
	}
}

// player replays a trace on a store.
type player struct {
	clock  virtual.Clock
	store  *diskstore.Store
	layout pagefile.Layout
}

// replay returns how many pages a store with room for some gives back. served is called after each request.
func replay(ctx context.Context, requests []trace.Request, pages int, use bool, served func()) (given int, err error) {
	p := &player{}
	if err := p.open(ctx, pages, use); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.store.Close()) }()
	for i, r := range requests {
		p.clock.Set(r.At)
		found, err := p.serve(ctx, r.Blocks)
		if err != nil {
			return 0, fmt.Errorf("request %d: %w", i, err)
		}
		given += found
		served()
	}
	return given, nil
}

func (p *player) open(ctx context.Context, pages int, use bool) (err error) {
	if p.layout, err = virtual.Layout(); err != nil {
		return err
	}
	file, err := virtual.FileBytes(p.layout)
	if err != nil {
		return err
	}
	o := diskstore.Options{
		Fingerprint: virtual.Fingerprint, PageTokens: 1, FS: vfs.NewDurableMem(1 << 40), Now: p.clock.Now,
		Local: diskstore.TierConfig{Root: "/pages", BudgetBytes: int64(pages) * file},
	}
	policy(&o, use)
	p.store, err = diskstore.Open(ctx, o)
	return err
}

// serve looks up a prompt, reads what is found and stores the rest. After each page it waits for what the store
// does behind requests, so that all replays are alike. The result is the number of pages found.
func (p *player) serve(ctx context.Context, blocks []int32) (int, error) {
	refs := p.store.Find(ctx, diskstore.Prompt{Tokens: blocks}).Exact
	for i, ref := range refs {
		into := diskstore.Into{Rows: make([]byte, p.layout.Size())}
		if err := p.store.Read(ctx, ref, blocks[i:i+1], p.layout, into); err != nil {
			return 0, fmt.Errorf("reading block %d: %w", i, err)
		}
	}
	parent := virtual.Fingerprint
	for i, block := range blocks {
		page := virtual.Page(p.layout, parent, i, block)
		if parent = page.Key(); i < len(refs) {
			continue
		}
		err := p.store.Put(ctx, page)
		if errors.Is(err, tier.ErrNoSpace) { // the prompt is longer than the budget
			break
		}
		if err == nil {
			err = p.store.Flush(ctx) // also counts, which real time begins
		}
		if err != nil {
			return 0, fmt.Errorf("storing block %d: %w", i, err)
		}
	}
	return len(refs), p.store.Flush(ctx)
}
