package diskstore

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// coldSections have rows of f16, of which a lossy page needs fewer blocks of the disk, and a kind
// that stays lossless.
var coldSections = []pagefile.Section{
	{Layer: 0, Kind: pagefile.KindK, RowBytes: 2048},
	{Layer: 0, Kind: pagefile.KindV, RowBytes: 2048},
	{Layer: 0, Kind: pagefile.KindCell, RowBytes: 4},
}

// withCold makes pages lossy that move down.
func withCold(k, v encoding.ID) func(*Options) {
	return func(o *Options) { o.Cold = ColdTypes{K: k, V: v} }
}

// coldFill fills a page with numbers of f16 derived from the page's key.
func coldFill(l pagefile.Layout, key pagefile.Key, payload []byte) {
	h := fnv.New64a()
	h.Write(key[:])
	rng := rand.New(rand.NewPCG(h.Sum64(), 2))
	for i := range l.Len() {
		rows := l.Rows(payload, i)
		for at := 0; at+2 <= len(rows); at += 2 {
			binary.LittleEndian.PutUint16(rows[at:], float16.Fromfloat32(float32(rng.NormFloat64())).Bits())
		}
	}
}

// coldPages are the pages of tokens, with rows of f16.
func coldPages(t require.TestingT, o Options, tokens []int32) []*pagefile.Page {
	pages := tinyPages(t, o, coldSections, tokens)
	for _, p := range pages {
		clear(p.Payload)
		coldFill(p.Layout, p.Key(), p.Payload)
	}
	return pages
}

// lossyRows are the rows of a page after a move down as how.
func lossyRows(t require.TestingT, p *pagefile.Page, how ColdTypes) []byte {
	c, err := pagefile.NewCodec()
	require.NoError(t, err)
	rows := append([]byte{}, p.Payload...)
	for i, section := range p.Layout.Sections() {
		id := encoding.Raw
		switch section.Kind {
		case pagefile.KindK:
			id = how.K
		case pagefile.KindV:
			id = how.V
		}
		if !id.Lossy() {
			continue
		}
		stored, err := c.EncodeLossy(id, p.Layout.Rows(p.Payload, i), section)
		require.NoError(t, err)
		require.NoError(t, c.Decode(id, stored, p.Layout.Rows(rows, i)))
	}
	return rows
}

// setCold changes Options.Cold of an open store.
func setCold(s *Store, cold ColdTypes) {
	s.opt.Cold, s.pages.Cold = cold, cold.on()
	s.mover.Cold = pagefile.Cold{K: cold.K, V: cold.V, Compress: s.opt.Compress}
}

// putCold stores the pages of tokens.
func putCold(t testing.TB, s *Store, tokens []int32) []*pagefile.Page {
	t.Helper()
	pages := coldPages(t, s.opt, tokens)
	for _, p := range pages {
		require.NoError(t, s.Put(ctx, p))
	}
	return pages
}

// sink moves a page of the local tier down.
func sink(t testing.TB, s *Store, name pagefile.Name) {
	t.Helper()
	evictPage(t, s, mustStat(t, s.disk, name))
	requireNone(t, s.disk, name)
}

// mixed looks tokens up.
func mixed(s *Store, tokens []int32) []Ref {
	return s.Find(ctx, Prompt{Tokens: tokens, Forms: AnyForm}).Mixed
}

// rowsOf reads a page.
func rowsOf(t testing.TB, s *Store, ref Ref, p *pagefile.Page) []byte {
	t.Helper()
	buf := make([]byte, p.Layout.Size())
	for i := range buf {
		buf[i] = 0xaa
	}
	require.NoError(t, s.Read(ctx, ref, p.Tokens[:ref.Tokens], p.Layout, Into{Rows: buf}))
	return buf
}

// TestColdPages moves pages down as each type, and reads them from both tiers.
func TestColdPages(t *testing.T) {
	for _, how := range []ColdTypes{
		{encoding.Q8_0, encoding.Q8_0}, {encoding.Q4_0, encoding.Q4_0}, {encoding.Int4, encoding.Int4},
		{encoding.Q8_0, encoding.Q4_0}, {encoding.Raw, encoding.Q8_0}, {encoding.Int4, encoding.Raw},
	} {
		for _, compress := range []bool{false, true} {
			t.Run(how.K.String()+","+how.V.String()+map[bool]string{true: " compressed"}[compress], func(t *testing.T) {
				s, o := openNew(t, withRemote(t), withCold(how.K, how.V), func(o *Options) { o.Compress = compress })
				tokens := prompt(1, 2*testTokens+3)
				pages := putCold(t, s, tokens)
				var raw, bytes int64
				for i := len(pages) - 1; i >= 0; i-- {
					sink(t, s, placeOf(o, pages[i]))
					there := mustStat(t, s.guard, pagefile.ColdName(placeOf(o, pages[i])))
					requireNone(t, s.guard, placeOf(o, pages[i]), "instead of the exact copy")
					raw, bytes = raw+int64(pages[i].Layout.Size()), bytes+there.Bytes
				}
				st := s.Stats()
				require.EqualValues(t, []uint64{3, 3, uint64(raw), uint64(bytes)}, []uint64{st.Demoted, st.LossyPages, st.LossyRawBytes, st.LossyBytes})
				require.Less(t, uint64(bytes), st.WroteBytes)

				for _, from := range []string{tier.Remote, tier.Local} {
					require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact, "an exact look-up finds no lossy page")
					refs := mixed(s, tokens)
					require.Len(t, refs, 3)
					require.Equal(t, len(tokens), tokensIn(refs))
					for i, ref := range refs {
						require.Equal(t, from, ref.Tier)
						require.True(t, ref.Lossy)
						require.Equal(t, lossyRows(t, pages[i], how), rowsOf(t, s, ref, pages[i]))
						require.True(t, storedLayout(t, s, ref).Equal(pages[i].Layout))
					}
					require.NoError(t, s.Flush(ctx)) // the pages move up
				}
				require.EqualValues(t, 3, s.Stats().Promoted)
				require.False(t, s.Has(pages[0].Key()), "a lossy page is no copy of the page")
				requireExact(t, s)
			})
		}
	}
}

// TestExactWinsWhereverItIs finds an exact page in the remote tier before a lossy one in the local
// tier or in memory.
func TestExactWinsWhereverItIs(t *testing.T) {
	for _, ram := range []int64{0, 1 << 20} {
		o := testOptions(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0), func(o *Options) { o.RAM.BudgetBytes = ram })
		tokens := prompt(1, 3*testTokens)
		all := coldPages(t, o, tokens)
		places := []pagefile.Name{placeOf(o, all[0]), placeOf(o, all[1]), placeOf(o, all[2])}
		s := open(t, o)
		putCold(t, s, tokens)
		sink(t, s, places[2])
		sink(t, s, places[1])
		s.ram.Drop(places[1])
		s.ram.Drop(places[2])
		refs := mixed(s, tokens)
		require.Equal(t, []bool{false, true, true}, []bool{refs[0].Lossy, refs[1].Lossy, refs[2].Lossy})
		for i, ref := range refs {
			rowsOf(t, s, ref, all[i])
		}
		require.NoError(t, s.Flush(ctx)) // both lossy pages are local now

		plain := o
		plain.Cold, plain.RAM = ColdTypes{}, RAMConfig{}
		other := open(t, plain)
		putCold(t, other, tokens)
		sink(t, other, places[2])
		sink(t, other, places[1])
		mustStat(t, other.guard, places[1])
		require.Equal(t, other.Find(ctx, Prompt{Tokens: tokens, Forms: AnyForm}).Mixed, other.Find(ctx, Prompt{Tokens: tokens}).Exact, "without Cold, a lossy page is never found")

		refs = mixed(s, tokens)
		require.Len(t, refs, 3)
		for i, ref := range refs {
			require.False(t, ref.Lossy)
			require.Equal(t, all[i].Payload, rowsOf(t, s, ref, all[i]))
		}
		require.Equal(t, tier.Remote, refs[1].Tier)
		require.NoError(t, s.Flush(ctx))

		// A tier that does not answer has no exact page.
		dropPage(t, s.local, mustStat(t, s.disk, places[2]))
		s.ram.Drop(places[2])
		s.guard.Inner = &deadlines{Disk: tier.OnDisk(s.guard.Inner)}
		s.guard.LookupIn = time.Millisecond
		refs = mixed(s, tokens)
		require.Len(t, refs, 3)
		require.Equal(t, []bool{false, false, true}, []bool{refs[0].Lossy, refs[1].Lossy, refs[2].Lossy})
		require.Equal(t, lossyRows(t, all[2], o.Cold), rowsOf(t, s, refs[2], all[2]))
	}
}

func mustStat(t testing.TB, on tier.Tier, name pagefile.Name) tier.Info {
	t.Helper()
	info, err := tier.Stat(ctx, on, name)
	require.NoError(t, err)
	return info
}

// requireNone requires that a tier has no file of a name.
func requireNone(t testing.TB, on tier.Tier, name pagefile.Name, why ...any) {
	t.Helper()
	_, err := tier.Stat(ctx, on, name)
	require.ErrorIs(t, err, tier.ErrNotFound, why...)
}

// TestChainsOfBothKinds: exact and lossy pages alternate over the tiers, further than one round of
// look-ups goes.
func TestChainsOfBothKinds(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q4_0, encoding.Q4_0))
	const n = 2*mixedRoundMost + 5
	tokens := prompt(1, n*testTokens)
	pages := putCold(t, s, tokens)
	want := make([]string, n)
	for i, p := range pages {
		name := placeOf(o, p)
		switch i % 4 {
		case 0:
			want[i] = "local"
		case 1:
			want[i] = "remote lossy"
			sink(t, s, name)
		case 2:
			want[i] = "remote"
			setCold(s, ColdTypes{})
			sink(t, s, name)
			setCold(s, o.Cold)
		case 3:
			want[i] = "local lossy"
			sink(t, s, name)
			ref := Ref{Key: p.Key(), Parent: p.Parent, Start: p.Start, Tokens: testTokens, Stored: testTokens, Lossy: true, Tier: tier.Remote}
			rowsOf(t, s, ref, p)
			require.NoError(t, s.Flush(ctx))
		}
	}
	parent, refs := o.Fingerprint, mixed(s, tokens)
	require.Len(t, refs, n)
	for i, ref := range refs {
		require.Equal(t, want[i], ref.Tier+map[bool]string{true: " lossy"}[ref.Lossy], "page %d", i)
		require.Equal(t, parent, ref.Parent)
		require.EqualValues(t, i*testTokens, ref.Start)
		parent = ref.Key
		rows := pages[i].Payload
		if ref.Lossy {
			rows = lossyRows(t, pages[i], o.Cold)
		}
		require.Equal(t, rows, rowsOf(t, s, ref, pages[i]))
	}
	require.Len(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact, 1)
	require.NoError(t, s.Flush(ctx)) // pages move up
	rest := s.Find(ctx, Prompt{Parent: refs[4].Key, Start: 5 * testTokens, Tokens: tokens[5*testTokens:], Forms: AnyForm}).Mixed
	require.Len(t, rest, n-5)
	for i, ref := range rest {
		require.Equal(t, refs[5+i].Key, ref.Key)
		require.Equal(t, refs[5+i].Lossy, ref.Lossy)
		require.Equal(t, refs[5+i].Start, ref.Start)
	}
	gone := pagefile.ColdName(placeOf(o, pages[9]))
	dropPage(t, s.remote, mustStat(t, s.guard, gone))
	dropPage(t, s.local, mustStat(t, s.disk, gone))
	require.Len(t, mixed(s, tokens), 9)
}

// TestLossyOnce moves lossy pages up and down, with other settings in between: their bytes stay.
func TestLossyOnce(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	tokens := prompt(1, testTokens)
	p := putCold(t, s, tokens)[0]
	exact, lossy := placeOf(o, p), pagefile.ColdName(placeOf(o, p))
	sink(t, s, exact)
	first := fileOf(t, filePath(o.Remote.Root, lossy))

	o.Cold, o.Compress = ColdTypes{encoding.Q4_0, encoding.Int4}, true
	s = open(t, o)
	for range 2 {
		rowsOf(t, s, mixed(s, tokens)[0], p)
		require.NoError(t, s.Flush(ctx))
		up := fileOf(t, filePath(o.Local.Root, lossy))
		require.Equal(t, first, up)
		dropPage(t, s.remote, mustStat(t, s.guard, lossy))
		sink(t, s, lossy)
		again := fileOf(t, filePath(o.Remote.Root, lossy))
		require.Equal(t, first, again)
	}
	require.Zero(t, s.Stats().LossyPages)
	requireNone(t, s.guard, pagefile.ColdName(lossy))
}

// TestAPageMovesDownOnce: a file of the remote tier stands for a page if it is exact, or lossy as
// the settings say, and every byte of it is good.
func TestAPageMovesDownOnce(t *testing.T) {
	setup := func(t *testing.T, edit ...func(*Options)) (*Store, *pagefile.Page, pagefile.Name) {
		o := testOptions(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
		for _, e := range edit {
			e(&o)
		}
		s := open(t, o)
		p := putCold(t, s, prompt(1, testTokens))[0]
		return s, p, placeOf(o, p)
	}
	again := func(t *testing.T, s *Store, p *pagefile.Page, name pagefile.Name) {
		putCold(t, s, p.Tokens)
		sink(t, s, name)
	}
	t.Run("lossy", func(t *testing.T) {
		s, p, name := setup(t)
		sink(t, s, name)
		again(t, s, p, name)
		require.EqualValues(t, 1, s.Stats().LossyPages)
		require.EqualValues(t, 2, s.Stats().Demoted)
		require.NoError(t, s.Close())
		s = open(t, s.opt) // which has to read the file
		again(t, s, p, name)
		require.Zero(t, s.Stats().LossyPages)
		require.EqualValues(t, 1, s.Stats().Demoted)
	})
	t.Run("exact", func(t *testing.T) {
		s, p, name := setup(t)
		setCold(s, ColdTypes{})
		sink(t, s, name)
		setCold(s, ColdTypes{encoding.Q8_0, encoding.Q8_0})
		again(t, s, p, name)
		require.Zero(t, s.Stats().LossyPages)
		require.Equal(t, p.Payload, rowsOf(t, s, s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact[0], p))
		require.NoError(t, s.Flush(ctx))
		requireNone(t, s.guard, pagefile.ColdName(name))
	})
	t.Run("exact and compressed", func(t *testing.T) {
		s, p, name := setup(t, func(o *Options) { o.Compress = true })
		setCold(s, ColdTypes{})
		sink(t, s, name)
		s.opt.Compress = false
		setCold(s, ColdTypes{encoding.Q8_0, encoding.Q8_0})
		again(t, s, p, name)
		require.Zero(t, s.Stats().LossyPages)
		requireNone(t, s.guard, pagefile.ColdName(name))
	})
	t.Run("another type", func(t *testing.T) {
		s, p, name := setup(t)
		sink(t, s, name)
		setCold(s, ColdTypes{encoding.Int4, encoding.Q4_0})
		again(t, s, p, name)
		require.EqualValues(t, 2, s.Stats().LossyPages)
		require.Equal(t, lossyRows(t, p, s.opt.Cold), rowsOf(t, s, mixed(s, p.Tokens)[0], p))
	})
	for where, at := range map[string]func(size int) int{
		"header": func(int) int { return 70 }, "row": func(size int) int { return size / 2 }, "footer": func(size int) int { return size - 1 },
	} {
		t.Run("damaged "+where, func(t *testing.T) {
			s, p, name := setup(t)
			sink(t, s, name)
			path := filePath(s.opt.Remote.Root, pagefile.ColdName(name))
			flipAt(t, path, at(int(mustStat(t, s.guard, pagefile.ColdName(name)).Bytes)))
			s.remote.checked.Copies.Forget(pagefile.ColdName(name))
			again(t, s, p, name)
			require.EqualValues(t, 2, s.Stats().LossyPages)
			require.EqualValues(t, 1, s.Stats().Damaged)
			require.Equal(t, lossyRows(t, p, s.opt.Cold), rowsOf(t, s, mixed(s, p.Tokens)[0], p))
		})
	}
}
