package diskstore

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestLossyTailsAndBranches looks for the last page of a chain among lossy ones, in all tiers.
func TestLossyTailsAndBranches(t *testing.T) {
	for _, ram := range []int64{0, 1 << 20} {
		s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0), func(o *Options) { o.RAM.BudgetBytes = ram })
		tokens := prompt(1, testTokens+5)
		pages := putCold(t, s, tokens)
		forget := func() {
			for _, p := range pages {
				s.ram.Drop(placeOf(o, p))
			}
		}
		sink(t, s, placeOf(o, pages[1]))
		sink(t, s, placeOf(o, pages[0]))
		forget()
		likeTail := append(slices.Clone(tokens[:testTokens+4]), 7, 7)
		likePage := append(slices.Clone(tokens[:testTokens-3]), 9, 9)
		above := map[bool]string{true: tier.RAM, false: tier.Local}[ram > 0]
		for _, from := range []string{tier.Remote, above, above} {
			refs := mixed(s, likeTail)
			require.Len(t, refs, 2)
			last := refs[1]
			require.True(t, last.Tail)
			require.Equal(t, []any{true, 4, 5, from}, []any{last.Lossy, last.Tokens, last.Stored, last.Tier})
			rowsOf(t, s, refs[0], pages[0])
			require.Equal(t, lossyRows(t, pages[1], o.Cold), rowsOf(t, s, last, pages[1]))

			refs = mixed(s, likePage)
			require.Len(t, refs, 1)
			require.Equal(t, []any{true, testTokens - 3, false}, []any{refs[0].Lossy, refs[0].Tokens, refs[0].Tail})
			require.Equal(t, lossyRows(t, pages[0], o.Cold), rowsOf(t, s, refs[0], pages[0]))
			for _, tokens := range [][]int32{tokens, likeTail, likePage} {
				require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
			}
			require.Empty(t, tailsWithin(s, Prompt{Parent: pages[1].Parent, Start: testTokens, Tokens: tokens[testTokens:]}))
			require.NoError(t, s.Flush(ctx))
		}

		// An exact page or tail counts if it shares as much, and a lossy one if it shares more.
		fork := append(slices.Clone(tokens[:testTokens-3]), 5, 5, 5)
		putCold(t, s, fork)
		require.False(t, mixed(s, likePage)[0].Lossy)
		longer := append(slices.Clone(tokens[:testTokens-2]), 9)
		require.True(t, mixed(s, longer)[0].Lossy)
		require.Equal(t, testTokens-2, mixed(s, longer)[0].Tokens)
		putCold(t, s, tokens[:testTokens])
		putCold(t, s, append(slices.Clone(tokens[:testTokens+4]), 6))
		refs := mixed(s, likeTail)
		require.Equal(t, []bool{false, false}, []bool{refs[0].Lossy, refs[1].Lossy})
		require.Equal(t, 4, refs[1].Tokens)
		refs = mixed(s, tokens)
		require.Equal(t, []bool{false, true}, []bool{refs[0].Lossy, refs[1].Lossy})
		require.Equal(t, len(tokens), tokensIn(refs))
	}
}

// TestPagesThatMoveDownExact: a lossy page has to be smaller on the disk, and possible.
func TestPagesThatMoveDownExact(t *testing.T) {
	numbers := func(value uint16) func(p *pagefile.Page) {
		return func(p *pagefile.Page) {
			for i := range p.Layout.Len() {
				rows := p.Layout.Rows(p.Payload, i)
				for at := 0; at < len(rows); at += 2 {
					binary.LittleEndian.PutUint16(rows[at:], value)
				}
			}
		}
	}
	row := func(bytes uint32, kinds ...pagefile.Kind) (sections []pagefile.Section) {
		for _, kind := range kinds {
			sections = append(sections, pagefile.Section{Kind: kind, RowBytes: bytes})
		}
		return sections
	}
	const nan = 0x7e00
	for name, c := range map[string]struct {
		sections []pagefile.Section
		fill     func(p *pagefile.Page)
		lossy    []bool // by section; nil for an exact file
		edit     func(*Options)
	}{
		"as much disk space":     {sections: row(512, pagefile.KindK, pagefile.KindV)}, // 4,096 bytes, and less than that
		"a block less":           {sections: row(768, pagefile.KindK, pagefile.KindV), lossy: []bool{true, true}},
		"no numbers":             {sections: row(2048, pagefile.KindK, pagefile.KindV), fill: numbers(nan)},
		"rows without blocks":    {sections: row(1026, pagefile.KindK, pagefile.KindV)},
		"no K and V":             {sections: row(4096, pagefile.KindConv, pagefile.KindState, pagefile.KindWindowK, pagefile.KindWindowV)},
		"K and V beside a state": {sections: row(8192, pagefile.KindK, pagefile.KindV, pagefile.KindState), lossy: []bool{true, true, false}},
		"some numbers": {sections: row(4096, pagefile.KindK, pagefile.KindV), lossy: []bool{true, false}, fill: func(p *pagefile.Page) {
			coldFill(p.Layout, p.Key(), p.Payload)
			binary.LittleEndian.PutUint16(p.Layout.Rows(p.Payload, 1), nan)
		}},
		"much smaller already": {sections: row(1<<15, pagefile.KindK, pagefile.KindV), fill: numbers(0x3c00), edit: func(o *Options) { o.Compress = true }},
		"another fingerprint": {sections: row(2048, pagefile.KindK, pagefile.KindV), edit: func(o *Options) {
			o.Fingerprint = testFingerprint(7)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
			mine := o
			if c.edit != nil {
				c.edit(&o)
			}
			s := open(t, o)
			p := tinyPages(t, o, c.sections, prompt(1, testTokens))[0]
			clear(p.Payload)
			if c.fill == nil {
				coldFill(p.Layout, p.Key(), p.Payload)
			} else {
				c.fill(p)
			}
			require.NoError(t, s.Put(ctx, p))
			by := s
			if o.Fingerprint != mine.Fingerprint {
				by = open(t, mine)
			}
			sink(t, by, placeOf(o, p))
			if c.lossy == nil {
				require.Zero(t, by.Stats().LossyPages)
				mustStat(t, s.guard, placeOf(o, p))
				require.Equal(t, p.Payload, rowsOf(t, s, s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact[0], p))
				return
			}
			h, _, err := s.remote.checked.Header(ctx, pagefile.ColdName(placeOf(o, p)))
			require.NoError(t, err)
			for i, section := range h.Sections {
				require.Equal(t, c.lossy[i], section.Encoding.Lossy())
			}
			rows := rowsOf(t, s, mixed(s, p.Tokens)[0], p)
			for i, lossy := range c.lossy {
				require.Equal(t, !lossy, slices.Equal(p.Layout.Rows(p.Payload, i), p.Layout.Rows(rows, i)))
			}
		})
	}
}

// TestALocalPageIsNeverLostWhileItBecomesLossy makes each operation of a move down fail in turn: the
// page is then in one of the tiers, exact or lossy.
func TestALocalPageIsNeverLostWhileItBecomesLossy(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			inj := vfs.Inject(vfs.NewMem(1 << 30))
			o := testOptions(t, withFS(inj), withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0), func(o *Options) {
				o.Local.Root, o.Remote.Root = "/local", "/remote"
			})
			require.NoError(t, inj.Mkdir(o.Remote.Root))
			s := open(t, o)
			for nth := 1; ; nth++ {
				tokens := prompt(nth, testTokens)
				p := putCold(t, s, tokens)[0]
				require.NoError(t, s.Flush(ctx))
				name := placeOf(o, p)
				info := mustStat(t, s.disk, name)
				rule := fault.rule
				rule.Nth = nth
				inj.Reset()
				inj.Add(rule)
				_, err := s.mover.Move(ctx, info)
				reached := inj.Count(rule.Ops...)
				inj.Reset()
				s.guard.Breaker.Success()
				if err == nil {
					dropPage(t, s.local, info)
				}
				refs := mixed(s, tokens)
				require.Len(t, refs, 1, "operation %d", nth)
				want := p.Payload
				if refs[0].Lossy {
					want = lossyRows(t, p, o.Cold)
				}
				require.Equal(t, want, rowsOf(t, s, refs[0], p))
				require.NoError(t, s.Flush(ctx))
				if nth > reached {
					require.True(t, refs[0].Lossy, "without a fault")
					break
				}
			}
			require.Zero(t, s.Stats().Damaged)
		})
	}
}

// TestADamagedPageDoesNotBecomeLossy finds the damage of a local page when the page moves down.
func TestADamagedPageDoesNotBecomeLossy(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	p := putCold(t, s, prompt(1, testTokens))[0]
	name := placeOf(o, p)
	path := filePath(o.Local.Root, name)
	flipAt(t, path, 5000)
	_, err := s.local.room.Evict(ctx, mustStat(t, s.disk, name), true)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Stats().Damaged)
	require.Empty(t, mixed(s, p.Tokens))
	require.NoError(t, s.Close())
	found, err := walk(vfs.OS, o.Remote.Root)
	require.NoError(t, err)
	require.Empty(t, found.placed)
}

// TestOrderOfMixedChains uses a mixed chain in the local tier: its pages stay in the order of the
// chain, exact and lossy ones alike.
func TestOrderOfMixedChains(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	tokens := prompt(1, 4*testTokens)
	pages := putCold(t, s, tokens)
	for _, i := range []int{3, 1} {
		sink(t, s, placeOf(o, pages[i]))
	}
	for i, ref := range mixed(s, tokens) {
		rowsOf(t, s, ref, pages[i])
	}
	require.NoError(t, s.Flush(ctx))
	files := func() (names []pagefile.Name, infos []tier.Info) {
		infos = listAll(t, s.local)
		slices.SortFunc(infos, func(a, b tier.Info) int { return b.Used.Compare(a.Used) })
		for _, info := range infos {
			names = append(names, info.Name)
		}
		return names, infos
	}
	name := func(i int) pagefile.Name { return placeOf(o, pages[i]) }
	want := []pagefile.Name{name(0), pagefile.ColdName(name(1)), name(2), pagefile.ColdName(name(3))}
	past := time.Now().Add(-time.Hour)
	for age := range 2 {
		for i, name := range want {
			path := filePath(o.Local.Root, name)
			used := recency.Of(past.Add(-time.Duration(age)*time.Minute), uint32(i*testTokens))
			require.NoError(t, os.Chtimes(path, used, used))
		}
		s.chains.Forget()
		refs := mixed(s, tokens)
		require.Equal(t, tier.Local, refs[3].Tier)
		rowsOf(t, s, refs[3], pages[3]) // the last page alone
		require.NoError(t, s.Flush(ctx))
		found, infos := files()
		require.Equal(t, want, found)
		for _, info := range infos {
			require.WithinDuration(t, time.Now(), info.Used, time.Minute)
		}
	}
	require.True(t, s.tiers.reachable(ctx, recency.Place{Parent: pages[3].Key(), Start: 4 * testTokens}))
	// A page that another host took for one from the future has moved back.
	for i, name := range want {
		used := recency.Of(past, uint32(i*testTokens))
		require.NoError(t, os.Chtimes(filePath(o.Local.Root, name), used, used))
	}
	now := s.now()
	require.Equal(t, now, s.chains.Time(ctx, recency.Place{Parent: pages[3].Key(), Start: 4 * testTokens}, now), "the noted time is not believed")
}

// TestReadAheadOfLossyPages reads lossy pages ahead, and joins the text of pages of both kinds.
func TestReadAheadOfLossyPages(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	tokens := prompt(1, 3*testTokens+5)
	pages := putCold(t, s, tokens)
	for _, i := range []int{3, 2, 1} {
		sink(t, s, placeOf(o, pages[i]))
	}
	for i, ref := range mixed(s, tokens) {
		rowsOf(t, s, ref, pages[i])
	}
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.Put(ctx, coldPages(t, o, tokens)[1])) // exact and lossy
	require.NoError(t, s.Close())

	o.ReadAheadBytes, o.LatestPages, o.RAM.BudgetBytes = plenty, 10, 1<<20
	s = open(t, o)
	text, err := s.Recent().Text(ctx)
	require.NoError(t, err)
	require.Equal(t, tokens, text)
	ahead := aheadOf(t, s)
	require.Equal(t, 4, ahead.Pages)
	for i, ref := range mixed(s, tokens) {
		require.Equal(t, tier.RAM, ref.Tier)
		require.Equal(t, i > 1, ref.Lossy)
		rowsOf(t, s, ref, pages[i])
	}
	latest, err := s.Recent().Pages(ctx)
	require.NoError(t, err)
	require.Len(t, latest, 2, "exact pages alone")
}

// TestToolsOfLossyPages: counts, causes and clean-up know whose pages lossy ones are.
func TestToolsOfLossyPages(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	tokens := prompt(1, 2*testTokens+3)
	pages := putCold(t, s, tokens)
	for i := len(pages) - 1; i >= 0; i-- {
		sink(t, s, placeOf(o, pages[i]))
	}
	rowsOf(t, s, mixed(s, tokens)[0], pages[0])
	require.NoError(t, s.Flush(ctx))
	cold := pagefile.ColdFingerprint(o.Fingerprint)
	want := map[string]string{"weights": "w", "namespace": "", "engine": "e1", tier.KeyLossyOf: o.Fingerprint.String()}
	for _, on := range []tier.Tier{s.disk, s.guard} {
		m, err := tier.ReadManifest(ctx, on, cold)
		require.NoError(t, err)
		require.Equal(t, want, m.Identity)
		exact, lossy := tier.LossyOf(cold, m.Identity)
		require.True(t, lossy)
		require.Equal(t, o.Fingerprint, exact)
		_, lossy = tier.LossyOf(o.Fingerprint, m.Identity)
		require.False(t, lossy)
	}
	found := scan(t, s)
	require.Empty(t, found.Local.Others)
	require.Empty(t, found.Remote.Others)
	require.Equal(t, []int{1, 2, 1}, []int{found.Local.Lossy.Pages, found.Remote.Lossy.Pages, found.Remote.Lossy.Tails})
	all := func(FingerprintUsage) bool { return true }
	gone, err := s.Reclaim(ctx, found, all)
	require.NoError(t, err)
	require.Zero(t, gone.Pages)
	require.Empty(t, s.Elsewhere(ctx, tokens, nil))

	other := o
	other.Fingerprint, other.Identity = testFingerprint(2), map[string]string{"weights": "v"}
	by := open(t, other)
	var elsewhere []int
	for _, e := range by.Elsewhere(ctx, tokens, nil) {
		require.Equal(t, o.Fingerprint, e.Fingerprint)
		require.Equal(t, map[string]string{"weights": "w", "namespace": "", "engine": "e1"}, e.Identity)
		elsewhere = append(elsewhere, e.Tokens)
	}
	require.Equal(t, []int{testTokens, 2 * testTokens}, elsewhere)

	// A root tells hits by fingerprint, and removes lossy pages.
	root := openRoot(t, o)
	usage, err := root.Usage(ctx)
	require.NoError(t, err)
	hits := make(map[pagefile.Key]int64)
	for _, use := range usage.Remote.Fingerprints {
		hits[use.Fingerprint] = use.Hits.Pages
	}
	require.EqualValues(t, 1, hits[cold])
	require.Zero(t, hits[o.Fingerprint])
	gcWith(t, root, GCOptions{Fingerprints: func(use FingerprintUsage) bool { return use.Fingerprint == cold }})
	require.NoError(t, root.Close())
	require.Empty(t, mixed(s, tokens))
	grave, ok := s.Gone(ctx, pages[0].Key())
	require.True(t, ok)
	require.Equal(t, TombstoneRemoved, grave.Reason)
}

// TestReadsTellLossyFromExact: a file under the wrong kind of name is not used.
func TestReadsTellLossyFromExact(t *testing.T) {
	s, o := openNew(t, withRemote(t), withCold(encoding.Q8_0, encoding.Q8_0))
	p := putCold(t, s, prompt(1, testTokens))[0]
	name := placeOf(o, p)
	sink(t, s, name)
	place(t, filePath(o.Remote.Root, pagefile.ColdName(name)), filePath(o.Local.Root, name))
	for _, ref := range s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact {
		require.ErrorIs(t, s.Read(ctx, ref, p.Tokens, p.Layout, Into{Rows: make([]byte, p.Layout.Size())}), pagefile.ErrMismatch)
	}
	require.Empty(t, s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact)
}
