package diskstore

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// mixedStore is a store whose chain begins with a page of an earlier version, raw in the local tier
// and with zstd in the remote one. Pages of each encoding follow.
type mixedStore struct {
	opt    Options
	tokens []int32
	media  []pagefile.Media
	pages  []*pagefile.Page
}

func newMixedStore(t *testing.T) *mixedStore {
	first := goldenPages(t, "pages.json")[0]
	m := &mixedStore{tokens: first.Tokens}
	m.opt = testOptions(t, withRemote(t), func(o *Options) { o.Fingerprint, o.PageTokens = mustKey(t, first.Fingerprint), first.PageTokens })
	m.media = []pagefile.Media{{Offset: first.Media[0].Offset, Hash: mustKey(t, first.Media[0].Hash)}}
	var sections []pagefile.Section
	for _, s := range first.Sections {
		kind := map[string]pagefile.Kind{"K": pagefile.KindK, "V": pagefile.KindV}[s.Kind]
		sections = append(sections, pagefile.Section{Group: s.Group, Layer: s.Layer, Kind: kind, RowBytes: s.RowBytes})
	}
	page := goldenSource(t, m.opt.Fingerprint, 0, first.Tokens, sections, m.media...)
	for i, s := range first.Sections {
		rows, err := hex.DecodeString(s.Rows)
		require.NoError(t, err)
		copy(page.Layout.Rows(page.Payload, i), rows)
	}
	m.pages = append(m.pages, page)
	s := open(t, m.opt)
	for root, file := range map[string]string{m.opt.Local.Root: "page-raw.kvp", m.opt.Remote.Root: "page-zstd.kvp"} {
		place(t, filepath.Join(goldenDir, file), filePath(root, s.pages.Page(page.Key())))
	}
	require.NoError(t, s.Close())
	m.put(t, false, 1)
	m.put(t, true, 0)   // zstd
	m.put(t, true, 1)   // split
	m.put(t, false, 30) // raw again
	return m
}

// put adds a page of f32 rows. Without noise all rows are alike.
func (m *mixedStore) put(t *testing.T, compress bool, noise float64) {
	before := m.pages[len(m.pages)-1]
	l := layoutOf(t, []pagefile.Section{{Layer: 0, Kind: pagefile.KindK, RowBytes: 4096}, {Layer: 0, Kind: pagefile.KindV, RowBytes: 1024}}, m.opt.PageTokens)
	p := &pagefile.Page{
		Parent: before.Key(), Start: uint32(len(m.tokens)), Tokens: prompt(len(m.pages), m.opt.PageTokens),
		Layout: l, Payload: make([]byte, l.Size()),
	}
	rng := rand.New(rand.NewPCG(uint64(len(m.pages)), 1))
	for at := 0; at < len(p.Payload); at += 4 {
		binary.LittleEndian.PutUint32(p.Payload[at:], math.Float32bits(float32(1+noise*rng.NormFloat64())))
	}
	m.tokens, m.pages = append(m.tokens, p.Tokens...), append(m.pages, p)
	o := m.opt
	o.Compress = compress
	s := open(t, o)
	require.NoError(t, s.Put(ctx, p))
	require.NoError(t, s.Close())
}

// requireRestored reads all pages and compares their rows.
func (m *mixedStore) requireRestored(t *testing.T, s *Store) {
	refs := s.Find(ctx, Prompt{Parent: m.opt.Fingerprint, Tokens: m.tokens, Media: m.media}).Exact
	require.Len(t, refs, len(m.pages))
	for i, ref := range refs {
		want := m.pages[i]
		buf := make([]byte, want.Layout.Size())
		require.NoError(t, s.Read(ctx, ref, want.Tokens, want.Layout, Into{Rows: buf}), "page %d", i)
		require.Equal(t, want.Payload, buf, "page %d", i)
	}
}

// TestPagesOfSeveralVersionsAreOneChain: whether a store compresses says nothing of the pages that
// it can read.
func TestPagesOfSeveralVersionsAreOneChain(t *testing.T) {
	for _, compress := range []bool{false, true} {
		m := newMixedStore(t)
		m.opt.Compress = compress
		s := open(t, m.opt)
		encodings := []pagefile.Encoding{pagefile.EncodingRaw, pagefile.EncodingRaw, pagefile.EncodingZstd, pagefile.EncodingSplit, pagefile.EncodingRaw}
		for i, ref := range s.Find(ctx, Prompt{Parent: m.opt.Fingerprint, Tokens: m.tokens, Media: m.media}).Exact {
			require.Equal(t, encodings[i], headerAt(t, s, ref).Sections[0].Encoding, "page %d", i)
		}
		m.requireRestored(t, s)
		for _, info := range listAll(t, s.local) { // all but the first move to the remote tier
			evictPage(t, s, info)
		}
		require.Empty(t, listAll(t, s.local))
		m.requireRestored(t, s)
	}
}
