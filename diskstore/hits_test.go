package diskstore

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// hitsIn returns the hits that tools report for a fingerprint, in both tiers.
func hitsIn(t *testing.T, o Options, fingerprint pagefile.Key) (local, remote ledger.Hits) {
	t.Helper()
	root, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: o.FS})
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	usage, err := root.Usage(ctx)
	require.NoError(t, err)
	require.NoError(t, usage.RemoteErr)
	of := func(u RootTierUsage) ledger.Hits {
		for _, use := range u.Fingerprints {
			if use.Fingerprint == fingerprint {
				return use.Hits
			}
		}
		return ledger.Hits{}
	}
	return of(usage.Local), of(usage.Remote)
}

func TestHitsAreKept(t *testing.T) {
	o := testOptions(t, withRemote(t))
	began := time.Now()
	s := open(t, o)
	a, b := prompt(1, 2*testTokens+3), prompt(2, testTokens)
	putChain(t, s, a)
	p := putChain(t, s, b)[0]
	evictPage(t, s, mustStat(t, s.disk, s.pages.Page(p.Key())))
	local, remote := hitsIn(t, o, o.Fingerprint)
	require.Equal(t, [2]ledger.Hits{}, [2]ledger.Hits{local, remote})

	readChain(t, s, a, len(a)) // two pages and a tail
	readChain(t, s, b, len(b)) // from the remote tier
	require.NoError(t, s.Flush(ctx))
	local, remote = hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 3, local.Pages)
	require.EqualValues(t, 1, remote.Pages)
	require.False(t, local.Last.Before(began.Truncate(0)))
	require.False(t, local.Last.After(time.Now()))

	// Another process and another model add their hits; no hit is counted twice.
	s2 := open(t, o)
	readChain(t, s2, a, len(a))
	other := o
	other.Fingerprint = testFingerprint(2)
	s3 := open(t, other)
	putChain(t, s3, b)
	readChain(t, s3, b, len(b))
	readChain(t, s, a, len(a))
	for _, store := range []*Store{s, s2, s3} {
		require.NoError(t, store.Flush(ctx))
		require.NoError(t, store.Close())
	}
	local, remote = hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 9, local.Pages)
	require.EqualValues(t, 1, remote.Pages)
	local, _ = hitsIn(t, o, other.Fingerprint)
	require.EqualValues(t, 1, local.Pages)

	// A model whose pages are removed has no hits left.
	root, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: o.FS})
	require.NoError(t, err)
	_, err = root.GC(ctx, GCOptions{Fingerprints: func(u FingerprintUsage) bool { return u.Fingerprint == o.Fingerprint }})
	require.NoError(t, err)
	require.NoError(t, root.Close())
	l := readLedgerFile(t, o)
	require.Len(t, l.Hits, 1)
	require.Contains(t, l.Hits, other.Fingerprint.String())
	require.Empty(t, l.Claims)
}

func TestHitsFromMemoryAreKept(t *testing.T) {
	s, o := openNew(t, func(o *Options) { o.RAM.BudgetBytes = 1 << 30 })
	tokens := putPrompt(t, s, 1, testTokens)
	for range 3 {
		readChain(t, s, tokens, len(tokens))
	}
	require.EqualValues(t, 3, s.Stats().RAMHits)
	require.NoError(t, s.Close())
	local, _ := hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 3, local.Pages)
}

// TestHitsWaitForADiskThatTakesThem: hits that could not be recorded are recorded later.
func TestHitsWaitForADiskThatTakesThem(t *testing.T) {
	s, o, inj := openInjected(t)
	tokens := putPrompt(t, s, 1, 2*testTokens)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpRename}, Err: syscall.ENOSPC})
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().TierErrors)
	inj.Reset()
	local, _ := hitsIn(t, o, o.Fingerprint)
	require.Zero(t, local.Pages)
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Flush(ctx))
	local, _ = hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 4, local.Pages)
}

// TestHitsAreRecordedTogether reads many pages at once, and then waits for the clock.
func TestHitsAreRecordedTogether(t *testing.T) {
	s, _, inj := openInjected(t)
	tokens := putPrompt(t, s, 1, 20*testTokens)
	require.NoError(t, s.Flush(ctx))
	inj.Reset()
	readChain(t, s, tokens, len(tokens))
	require.Zero(t, inj.Count(vfs.OpSync), "hits are not recorded during reads")
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 1, inj.Count(vfs.OpSync))
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 1, inj.Count(vfs.OpSync), "without new hits nothing is recorded")
}

// TestHitsOfAFullLedger: a store continues with a ledger that has the largest number of
// fingerprints.
func TestHitsOfAFullLedger(t *testing.T) {
	s, o := openNew(t)
	tokens := putPrompt(t, s, 1, testTokens)
	require.NoError(t, s.Close())
	l := readLedgerFile(t, o)
	const most = 256 // fingerprints with hits in a full ledger
	for i := range most {
		l.Hit(testFingerprint(byte(i)), ledger.Hits{Pages: 1, Last: time.Unix(int64(i), 0)})
	}
	content, err := l.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ledgerPath(o), content, 0o600))
	o.Fingerprint = pagefile.Key{5, 5, 5}
	s = open(t, o)
	putChain(t, s, tokens)
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Close())
	again := readLedgerFile(t, o)
	require.Len(t, again.Hits, most)
	require.EqualValues(t, 1, again.Hits[o.Fingerprint.String()].Pages)
	require.NotContains(t, again.Hits, testFingerprint(0).String())
}
