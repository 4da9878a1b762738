package kvcache

import (
	"bytes"
	"context"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/pairs"
)

// diskBelow also keeps pages in a real store, and compares the rows that both return.
type diskBelow struct {
	*hangingStore
	disk *diskstore.Store
}

// newDiskBelow opens a real store with pages in memory before compressed ones.
func newDiskBelow(t testing.TB) *diskstore.Store {
	return newDiskStore(t, "/pages", func(o *diskstore.Options) {
		o.FS, o.RAM.BudgetBytes, o.Compress = vfs.NewMem(1<<30), 64<<10, true
	})
}

func (s diskBelow) Put(ctx context.Context, p *pagefile.Page) error {
	if err := s.hangingStore.Put(ctx, p); err != nil {
		return err
	}
	return s.disk.Put(ctx, p)
}

func (s diskBelow) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	if err := s.hangingStore.Read(ctx, ref, tokens, layout, into); err != nil || ref.Lossy {
		return err
	}
	for _, below := range s.disk.Find(ctx, diskstore.Prompt{Parent: ref.Parent, Start: int(ref.Start), Tokens: tokens}).Exact {
		if below.Key != ref.Key || below.Tokens != ref.Tokens {
			continue
		}
		got := make([]byte, len(into.Rows))
		if err := s.disk.Read(ctx, below, tokens, layout, diskstore.Into{Rows: got}); err != nil {
			return err
		}
		if !bytes.Equal(into.Rows, got) {
			s.mu.Lock()
			s.wrong = append(s.wrong, "a page in the store on disk has other rows")
			s.mu.Unlock()
		}
	}
	return nil
}

// Each two optional features together, in small histories; longer with KVTIER_LONG=1. Two that do not
// go together are refused before there is a cache: TestSoakPairs has these.
func TestRandomInterleavingsOfPairs(t *testing.T) {
	const checks = "3" // histories of each pair
	before := flag.Lookup("rapid.checks").Value.String()
	require.NoError(t, flag.Set("rapid.checks", checks))
	defer func() { require.NoError(t, flag.Set("rapid.checks", before)) }()
	for _, pair := range pairs.All() {
		if pair.Refused != "" {
			continue
		}
		t.Run(pair.String(), func(t *testing.T) {
			playInterleavings(t, stepsLong/20, func(t *testing.T, sum *tried) {
				interleave(t, func(rt *rapid.T) drawnOptions { return drawPair(rt, pair) }, newFakeRunner, sum)
			})
		})
	}
}

// drawPair draws options with both features of a pair.
func drawPair(t *rapid.T, pair pairs.Pair) drawnOptions {
	d := draw(t, pair.Has(pairs.Shifted))
	d.disk = pair.Has(pairs.RAM) || pair.Has(pairs.Compress)
	d.lossy = d.lossy || pair.Has(pairs.Lossy)
	d.elastic = d.elastic || pair.Has(pairs.Elastic) || pair.Has(pairs.Paged) // both empty slots to make room
	d.host = d.host || pair.Has(pairs.Paged)                                  // pages are in host memory
	d.embeds = d.embeds || pair.Has(pairs.Embeddings)
	if d.forks = pair.Has(pairs.Multiuser); d.forks || pair.Has(pairs.Slots) {
		d.recurrent, d.slots = false, max(2, d.slots)
	}
	if pair.Has(pairs.Lossy) {
		d.recurrent = false // no lossy page is restored with state
	}
	return d
}
