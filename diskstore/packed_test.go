package diskstore

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// packing is an engine to which pages go compressed.
func packing(e *engine) func(*Options) {
	return func(o *Options) {
		withEngine(e)(o)
		o.CompressRemote = true
	}
}

// packablePages are the pages of tokens, with rows of f16 between 1 and 2.
func packablePages(t *testing.T, s *Store, tokens []int32) []*pagefile.Page {
	pages := coldPages(t, s.opt, tokens)
	for _, p := range pages {
		for i := range p.Layout.Len() {
			rows := p.Layout.Rows(p.Payload, i)
			for at := 1; at < len(rows); at += 2 {
				rows[at] = 0x3c
			}
		}
	}
	return pages
}

// putAll stores pages.
func putAll(t *testing.T, s *Store, pages []*pagefile.Page) []*pagefile.Page {
	for _, p := range pages {
		require.NoError(t, s.Put(ctx, p))
	}
	return pages
}

// evictAll moves the pages down, the last one first.
func evictAll(t *testing.T, s *Store, pages []*pagefile.Page) {
	for _, p := range slices.Backward(pages) {
		evictPage(t, s, mustStat(t, s.disk, s.pages.Page(p.Key())))
	}
	require.EqualValues(t, len(pages), s.Stats().Demoted)
}

// requireRows requires that a store reads pages of a prompt from the engine.
func requireRows(t *testing.T, s *Store, tokens []int32, pages []*pagefile.Page) {
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	require.Len(t, refs, len(pages))
	for i, ref := range refs {
		require.Equal(t, tier.Remote, ref.Tier)
		require.Equal(t, pages[i].Payload, rowsOf(t, s, ref, pages[i]))
	}
}

// TestPagesGoToAnEngineCompressed: the local pages stay as they are, a move down writes nothing more, and
// another machine reads the same rows.
func TestPagesGoToAnEngineCompressed(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, packing(e))
	tokens := prompt(1, 3*testTokens)
	pages := putAll(t, s, packablePages(t, s, tokens))
	require.NoError(t, s.Flush(ctx))
	var raw, packed int64
	for _, p := range pages {
		name := s.pages.Page(p.Key())
		ours, err := tier.ReadHeader(ctx, s.disk, name)
		require.NoError(t, err)
		require.True(t, ours.Raw())
		theirs, err := tier.ReadHeader(ctx, e, name)
		require.NoError(t, err)
		require.False(t, theirs.Raw() || theirs.Lossy())
		raw, packed = raw+ours.FileBytes, packed+theirs.FileBytes
	}
	require.Less(t, packed, raw)
	require.EqualValues(t, packed, s.Stats().ThroughBytes)

	evictAll(t, s, pages)
	require.Len(t, e.uploads(), len(pages), "a move down writes nothing")
	other, _ := openNew(t, packing(e))
	requireRows(t, other, tokens, pages)
	require.NoError(t, other.Flush(ctx)) // the pages move up
	require.Len(t, e.uploads(), len(pages))
}

// TestCompressedAndRawCopiesStandForEachOther: hosts with either setting write a page once, and one with other rows
// replaces the copy.
func TestCompressedAndRawCopiesStandForEachOther(t *testing.T) {
	tokens := prompt(1, 2*testTokens)
	for name, hosts := range map[string][2]func(*engine) func(*Options){
		"raw, then compressed": {withEngine, packing}, "compressed twice": {packing, packing},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			first, _ := openNew(t, hosts[0](e))
			pages := putAll(t, first, packablePages(t, first, tokens))
			require.NoError(t, first.Flush(ctx))

			alone := func(o *Options) { o.ThroughPerDay = 0 }
			second, _ := openNew(t, hosts[1](e), alone)
			putAll(t, second, pages)
			evictAll(t, second, pages)
			require.Len(t, e.uploads(), len(pages))

			other, _ := openNew(t, hosts[1](e), alone)
			changed := packablePages(t, other, tokens)
			changed[1].Payload[0] ^= 1
			putAll(t, other, changed)
			evictAll(t, other, changed)
			require.Len(t, e.uploads(), len(pages)+1)
			requireRows(t, other, tokens, changed)
		})
	}
}

// TestPagesThatCannotBeCompressed are copied.
func TestPagesThatCannotBeCompressed(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, packing(e))
	pages := putChain(t, s, prompt(1, 2*testTokens)) // random bytes
	require.NoError(t, s.Flush(ctx))
	theirs, err := tier.ReadHeader(ctx, e, s.pages.Page(pages[0].Key()))
	require.NoError(t, err)
	require.True(t, theirs.Raw())
	evictAll(t, s, pages)
	require.Len(t, e.uploads(), len(pages))
}
