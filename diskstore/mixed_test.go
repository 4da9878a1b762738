package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
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
	l := layoutOf(t, sections, len(first.Tokens))
	page := &pagefile.Page{Parent: m.opt.Fingerprint, Tokens: first.Tokens, Media: m.media, Layout: l, Payload: make([]byte, l.Size())}
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
		require.Equal(t, m.pages[i].Payload, rowsOf(t, s, ref, m.pages[i]), "page %d", i)
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

// uploadsAfter is a tier of which each upload begins with a call of first.
type uploadsAfter struct {
	tier.Disk
	first func()
}

func (u *uploadsAfter) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	u.first()
	return u.Disk.Create(ctx, name)
}

// TestAPageInUseStaysExact uses a page while it becomes lossy: the next pages continue its exact
// rows.
func TestAPageInUseStaysExact(t *testing.T) {
	for name, use := range map[string]func(s *Store, tokens []int32, pages []*pagefile.Page){
		"read": func(s *Store, tokens []int32, pages []*pagefile.Page) {
			for i, ref := range s.Find(ctx, Prompt{Tokens: tokens[:2*testTokens]}).Exact {
				rowsOf(t, s, ref, pages[i])
			}
		},
		"continued":    func(s *Store, _ []int32, pages []*pagefile.Page) { require.NoError(t, s.Put(ctx, pages[2])) },
		"stored again": func(s *Store, _ []int32, pages []*pagefile.Page) { require.NoError(t, s.Put(ctx, pages[1])) },
	} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
			tokens := prompt(1, 3*testTokens)
			pages := coldPages(t, o, tokens)
			for _, p := range pages[:2] {
				require.NoError(t, s.Put(ctx, p))
			}
			past := time.Now().Add(-time.Hour)
			for _, p := range pages[:2] {
				require.NoError(t, s.disk.Touch(ctx, placeOf(o, p), recency.Of(past, p.Start)))
			}
			s.chains.Forget()
			s.guard.Inner = &uploadsAfter{tier.OnDisk(s.guard.Inner), func() { use(s, tokens, pages) }}
			last := placeOf(o, pages[1])
			_, left := s.local.room.EvictAll(ctx, []tier.Info{mustStat(t, s.disk, last)}, 1, 1)
			require.True(t, left.CameIntoUse, "another collection may evict it")
			require.True(t, s.Has(pages[1].Key()))
			refs := s.Find(ctx, Prompt{Tokens: tokens[:2*testTokens]}).Exact
			require.Len(t, refs, 2)
			require.Equal(t, pages[1].Payload, rowsOf(t, s, refs[1], pages[1]))
			require.Zero(t, s.Stats().Demoted)
			mustStat(t, s.guard, pagefile.ColdName(last))

			s.guard.Inner.(*uploadsAfter).first = func() { require.Fail(t, "the remote tier has the lossy page") }
			sink(t, s, last)
			require.EqualValues(t, 1, s.Stats().LossyPages)
			require.True(t, mixed(s, tokens[:2*testTokens])[1].Lossy)
		})
	}
}

// TestAnOldLossyPageReplacesNoOther moves a lossy page down where another one has taken its place.
func TestAnOldLossyPageReplacesNoOther(t *testing.T) {
	for name, cold := range map[string]ColdTypes{"same settings": {encoding.Q8_0, encoding.Q8_0}, "off": {}} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, withRemote(t), withCold(encoding.Q4_0, encoding.Q4_0))
			tokens := prompt(1, testTokens)
			p := putCold(t, s, tokens)[0]
			exact, lossy := placeOf(o, p), pagefile.ColdName(placeOf(o, p))
			sink(t, s, exact)
			rowsOf(t, s, mixed(s, tokens)[0], p)
			require.NoError(t, s.Flush(ctx)) // the lossy page moves up

			o.Cold = ColdTypes{encoding.Q8_0, encoding.Q8_0}
			s = open(t, o)
			putCold(t, s, tokens)
			sink(t, s, exact)
			want := lossyRows(t, p, o.Cold)

			plain := o
			plain.Cold = cold
			sink(t, open(t, plain), lossy)
			refs := mixed(s, tokens)
			require.Len(t, refs, 1)
			require.Equal(t, tier.Remote, refs[0].Tier)
			require.True(t, bytes.Equal(want, rowsOf(t, s, refs[0], p)))
		})
	}
}

// TestALossyPageInAnExactPlace: of two stores the second has the fingerprint of the first one's lossy
// pages. It reads none of them from memory or a tier, and replaces the ones that it puts.
func TestALossyPageInAnExactPlace(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	tokens := prompt(1, 2*testTokens)
	pages := putCold(t, s, tokens)
	for _, p := range pages {
		ref := Ref{Key: p.Key(), Parent: p.Parent, Start: p.Start, Tokens: testTokens, Stored: testTokens, Lossy: true, Tier: tier.Remote}
		sink(t, s, placeOf(o, p))
		rowsOf(t, s, ref, p)
	}
	require.NoError(t, s.Flush(ctx)) // the pages move up
	require.NoError(t, s.Close())

	o.Fingerprint, o.Cold, o.Remote = pagefile.ColdFingerprint(o.Fingerprint), ColdTypes{}, TierConfig{}
	o.ReadAheadBytes, o.RAM.BudgetBytes = plenty, 1<<20
	s = open(t, o)
	aheadOf(t, s)
	last := pages[1]
	ref := Ref{Key: last.Key(), Parent: last.Parent, Start: last.Start, Tokens: testTokens, Stored: testTokens, Tier: tier.Local}
	buf := make([]byte, last.Layout.Size())
	require.ErrorIs(t, s.Read(ctx, ref, last.Tokens, last.Layout, Into{Rows: buf}), pagefile.ErrMismatch)
	require.NoError(t, s.Put(ctx, last))
	require.True(t, bytes.Equal(last.Payload, rowsOf(t, s, ref, last)))
}

// goldenDir holds pages that an earlier version wrote, and their content in pages.json for schema 1
// and in pages-2.json for schema 2. The files are never written again: every later version has to
// read them.
const goldenDir = "testdata/golden"

// goldenPage is an entry of pages.json. Keys, hashes and rows are hexadecimal.
type goldenPage struct {
	File        string          `json:"file"`
	Fingerprint string          `json:"fingerprint"`
	Key         string          `json:"key"`
	Parent      string          `json:"parent"`
	Start       uint32          `json:"start"`
	PageTokens  int             `json:"page_tokens"`
	Tokens      []int32         `json:"tokens"`
	Media       []goldenMedia   `json:"media"`
	Sections    []goldenSection `json:"sections"`
}

type goldenMedia struct {
	Offset uint32 `json:"offset"`
	Hash   string `json:"hash"`
}

type goldenSection struct {
	Group    uint16 `json:"group"`
	Layer    uint16 `json:"layer"`
	Kind     string `json:"kind"`
	RowBytes uint32 `json:"row_bytes"`
	Encoding string `json:"encoding"`
	Rows     string `json:"rows"`
}

// goldenPages returns the pages of a list in goldenDir.
func goldenPages(t *testing.T, list string) []goldenPage {
	t.Helper()
	text := fileOf(t, filepath.Join(goldenDir, list))
	var pages []goldenPage
	require.NoError(t, json.Unmarshal(text, &pages))
	require.NotEmpty(t, pages)
	return pages
}

// TestGoldenPages puts each golden page in its place in a store and reads it.
func TestGoldenPages(t *testing.T) {
	tails, media, encodings := false, false, make(map[pagefile.Encoding]bool)
	var pages []goldenPage
	for _, list := range []string{"pages.json", "pages-2.json"} {
		pages = append(pages, goldenPages(t, list)...)
	}
	for _, g := range pages {
		t.Run(g.File, func(t *testing.T) {
			fingerprint, key, parent := mustKey(t, g.Fingerprint), mustKey(t, g.Key), mustKey(t, g.Parent)
			s, o := openNew(t, func(o *Options) { o.Fingerprint, o.PageTokens = fingerprint, g.PageTokens })
			name := s.pages.Page(key)
			if len(g.Tokens) < g.PageTokens {
				name, tails = s.pages.Tail(key), true
			}
			from := filepath.Join(goldenDir, g.File)
			place(t, from, filePath(o.Local.Root, name))
			h, err := verifyFile(ctx, vfs.OS, from)
			require.NoError(t, err)
			require.Equal(t, fingerprint, h.Fingerprint)
			_, err = branch.Add(ctx, s.disk, h, true)
			require.NoError(t, err)

			var items []pagefile.Media
			for _, m := range g.Media {
				hash := mustKey(t, m.Hash)
				items, media = append(items, pagefile.Media{Offset: g.Start + m.Offset, Hash: hash}), true
			}
			refs := s.Find(ctx, Prompt{Parent: parent, Start: int(g.Start), Tokens: g.Tokens, Media: items}).Exact
			require.Len(t, refs, 1)
			require.Equal(t, key, refs[0].Key)
			require.Equal(t, len(g.Tokens), refs[0].Tokens)
			buf := make([]byte, h.Layout.Size())
			require.NoError(t, s.Read(ctx, refs[0], g.Tokens, h.Layout, Into{Rows: buf}))
			require.Len(t, h.Sections, len(g.Sections))
			for i, want := range g.Sections {
				got := h.Sections[i]
				require.Equal(t, pagefile.Section{Group: want.Group, Layer: want.Layer, Kind: got.Kind, RowBytes: want.RowBytes}, got.Section)
				require.Equal(t, want.Kind, got.Kind.String())
				require.Equal(t, want.Encoding, got.Encoding.String())
				require.Equal(t, want.Rows, hex.EncodeToString(h.Layout.Rows(buf, i)))
				encodings[got.Encoding] = true
			}
		})
	}
	require.True(t, tails && media, "golden pages cover every kind")
	for e := pagefile.Encoding(0); e.Known(); e++ {
		require.True(t, encodings[e], "%v", e)
	}
}

func mustKey(t *testing.T, s string) pagefile.Key {
	t.Helper()
	k, err := pagefile.ParseKey(s)
	require.NoError(t, err)
	return k
}
