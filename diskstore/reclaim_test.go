package diskstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// TestReclaimKeepsPagesUsedSince: between the count of a tier and Reclaim, a server of another
// version uses pages that nobody had used for a month, and stores one. These pages stay.
func TestReclaimKeepsPagesUsedSince(t *testing.T) {
	const month = 30 * 24 * time.Hour
	o := testOptions(t, withRemote(t))
	used, unused := prompt(1, 2*testTokens), prompt(2, 2*testTokens)
	other := open(t, o)
	levels := []*level{other.local, other.remote}
	for _, tokens := range [][]int32{used, unused} {
		putChain(t, other, tokens)
		for _, name := range namesOf(other, tokens) {
			info := mustStat(t, other.disk, name)
			require.NoError(t, other.demote(ctx, info))
		}
		for _, lv := range levels {
			setUsed(t, other, lv, tokens, time.Now().Add(-month-time.Hour))
		}
	}
	mine := o
	mine.Fingerprint = testFingerprint(2)
	s := open(t, mine)
	found, err := s.Survey(ctx)
	require.NoError(t, err)

	for _, lv := range levels {
		setUsed(t, other, lv, used, time.Now())
	}
	fresh := prompt(3, testTokens)
	putChain(t, other, fresh)
	got, err := s.Reclaim(ctx, found, func(use FingerprintUsage) bool { return use.Unused > month })
	require.NoError(t, err)
	require.Equal(t, 4, got.Pages, "both pages of one conversation, in both tiers")
	require.Zero(t, got.Fingerprints, "pages of it are left")
	for _, lv := range levels {
		for _, name := range namesOf(other, used) {
			_, err := tier.Stat(ctx, lv.tier, name)
			require.NoError(t, err, lv.name)
		}
		for _, name := range namesOf(other, unused) {
			_, err := tier.Stat(ctx, lv.tier, name)
			require.Error(t, err, lv.name)
		}
	}
	readChain(t, other, fresh, testTokens)
}

// TestGCKeepsPagesUsedSince: a page is used after its directory was listed.
func TestGCKeepsPagesUsedSince(t *testing.T) {
	s, o := openNew(t)
	pair := neighbours(t, o.Fingerprint)
	past := time.Now().Add(-48 * time.Hour)
	for _, p := range pair {
		require.NoError(t, s.Put(ctx, p))
		require.NoError(t, s.disk.Touch(ctx, s.pages.Page(p.Key()), past))
	}
	root, err := OpenRoot(ctx, RootOptions{Local: o.Local, FS: o.FS})
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	report, err := root.GC(ctx, GCOptions{OlderThan: 24 * time.Hour, Removed: func(gone GCFile) {
		for _, p := range pair {
			if name := s.pages.Page(p.Key()); name != gone.Name {
				require.NoError(t, s.disk.Touch(ctx, name, time.Now()))
			}
		}
	}})
	require.NoError(t, err)
	require.Equal(t, 1, report.Local.Pages)
	require.Len(t, listAll(t, s.local), 1)
}
