package team

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/bench/trace"
	"github.com/kvtier/kvtier/internal/bench/virtual"
	"github.com/kvtier/kvtier/rates"
)

// Model is how a server computes a model.
type Model struct {
	TokenBytes int64   // of K and V
	Token      float64 // seconds to compute the first token of a prompt
	Doubles    int     // position of a token that takes twice as long, because of attention
}

func (m Model) computing(begin, end int) float64 {
	mean := float64(begin+end) / 2
	return m.Token * float64(end-begin) * (1 + mean/float64(m.Doubles))
}

func (m Model) blockBytes() int64 { return m.TokenBytes * trace.BlockTokens }

// box is a server with one slot, in which no prompt finds another one's tokens. Prompts wait for each other,
// and answers for none.
type box struct {
	Model
	Links
	store  *diskstore.Store
	rates  *rates.Rates
	remote *remote // nil without
	layout pagefile.Layout
	free   float64 // when all prompts are computed
	cold   float64 // the same without a store
}

func openBox(ctx context.Context, d Day, c *virtual.Clock, r *remote) (*box, error) {
	b := &box{Model: d.Model, Links: Links{tier.Local: d.Disk, tier.Remote: d.Link}, rates: rates.NewAt(c.Now), remote: r}
	var err error
	if b.layout, err = virtual.Layout(); err != nil {
		return nil, err
	}
	file, err := virtual.FileBytes(b.layout)
	if err != nil {
		return nil, err
	}
	computed(b.rates, b.computing, 0, 16*trace.BlockTokens)
	o := diskstore.Options{
		Fingerprint: virtual.Fingerprint, PageTokens: 1, FS: vfs.NewDurableMem(1 << 40), Now: c.Now,
		Local:         diskstore.TierConfig{Root: "/pages", BudgetBytes: d.LocalBytes / b.blockBytes() * file},
		RemoteTimeout: time.Minute, ReadTimeout: time.Minute, // no timeouts on a busy machine
	}
	if r != nil {
		o.RemoteTier, o.ThroughPerDay = r, d.ThroughBytes/b.blockBytes()*file
	}
	b.store, err = diskstore.Open(ctx, o)
	return b, err
}

// served says how a prompt was served.
type served struct {
	local, remote int     // pages that were given back
	first         float64 // seconds to the first token
	computing     float64 // the same without a store
}

func (b *box) serve(ctx context.Context, r trace.Request) (s served, err error) {
	refs, look := b.find(ctx, r)
	chain := b.chain(refs)
	n, took := b.restore(b.rates, chain, b.rates.Plan(chain))
	for _, ref := range refs[:n] {
		if ref.Tier == tier.Remote {
			s.remote++
		} else {
			s.local++
		}
	}
	use := n
	if took == 0 && n < len(refs) {
		use = b.probe(b.rates, chain)
	}
	if err := b.read(ctx, r, refs[:use]); err != nil {
		return s, err
	}
	computed(b.rates, b.computing, n*trace.BlockTokens, r.Tokens)
	s.first = wait(&b.free, r.At, look+took+b.computing(n*trace.BlockTokens, r.Tokens))
	s.computing = wait(&b.cold, r.At, b.computing(0, r.Tokens))
	return s, b.put(ctx, r.Whole(), n)
}

// wait is the time from an arrival to the end of a prompt that takes some time after those before it.
func wait(free *float64, at, takes float64) float64 {
	*free = max(*free, at) + takes
	return *free - at
}

// find looks up the pages of a prompt, of which the last token is computed.
func (b *box) find(ctx context.Context, r trace.Request) ([]diskstore.Ref, float64) {
	prompt := diskstore.Prompt{Tokens: r.Known()}
	if b.remote == nil {
		return b.store.Find(ctx, prompt).Exact, 0
	}
	calls, names := b.remote.looks()
	found := b.store.Find(ctx, prompt).Exact
	callsAfter, namesAfter := b.remote.looks()
	return found, b.Links[tier.Remote].look(callsAfter-calls, namesAfter-names)
}

func (b *box) chain(refs []diskstore.Ref) (c rates.Chain) {
	for i, ref := range refs {
		c.Pages = append(c.Pages, rates.Page{Start: i * trace.BlockTokens, Tokens: trace.BlockTokens, Bytes: b.blockBytes(), Tier: ref.Tier})
	}
	return c
}

func (b *box) read(ctx context.Context, r trace.Request, refs []diskstore.Ref) error {
	for i, ref := range refs {
		into := diskstore.Into{Rows: make([]byte, b.layout.Size())}
		err := b.store.Read(ctx, ref, r.Blocks[i:i+1], b.layout, into)
		if err == nil {
			err = b.settle(ctx)
		}
		if err != nil {
			return fmt.Errorf("reading block %d of a prompt: %w", i, err)
		}
	}
	return nil
}

// put stores the pages of a prompt that were computed.
func (b *box) put(ctx context.Context, blocks []int32, from int) error {
	parent := virtual.Fingerprint
	for i, block := range blocks {
		page := virtual.Page(b.layout, parent, i, block)
		if parent = page.Key(); i < from {
			continue
		}
		err := b.store.Put(ctx, page)
		if errors.Is(err, tier.ErrNoSpace) { // the prompt is longer than the budget
			return nil
		}
		if err == nil {
			err = b.settle(ctx)
		}
		if err != nil {
			return fmt.Errorf("storing block %d of a prompt: %w", i, err)
		}
	}
	return nil
}

// settle waits for what the store does behind requests, so that all runs are alike.
func (b *box) settle(ctx context.Context) error {
	err := b.store.Flush(ctx)
	if b.remote != nil {
		b.remote.evict()
	}
	return err
}
