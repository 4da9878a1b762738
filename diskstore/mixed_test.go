package diskstore

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

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
