package diskstore

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// TestDropQuarantined: no page of a removed model stays in quarantine, and pages known to be
// other models' stay.
func TestDropQuarantined(t *testing.T) {
	o := testOptions(t)
	pages := putChain(t, open(t, o), prompt(1, 2*testTokens))
	other := o
	other.Fingerprint = testFingerprint(2)
	s := open(t, other)
	theirs := putChain(t, s, prompt(7, testTokens))[0]
	r := openRoot(t, o)
	at := func(o Options, p *pagefile.Page) string {
		return filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassPage, Key: p.Key()})
	}
	flipAt(t, at(o, pages[0]), 4200)   // ours, by its header
	flipAt(t, at(o, pages[1]), 60)     // its header is damaged
	flipAt(t, at(other, theirs), 4200) // the other model's
	var roots inspect.Roots
	roots.Local, roots.Remote = r.Dirs()
	_, err := roots.Check(ctx, inspect.CheckOptions{Repair: true})
	require.NoError(t, err)
	quarantine := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir)
	require.Len(t, filesIn(t, quarantine, dir.PageExt), 3)
	ours := func(fp pagefile.Key) bool { return fp == o.Fingerprint }

	drops, err := r.DropQuarantined(ctx, ours, true)
	require.NoError(t, err)
	require.Equal(t, 2, drops[0].Files)
	require.Len(t, filesIn(t, quarantine, dir.PageExt), 3)
	drops, err = r.DropQuarantined(ctx, ours, false)
	require.NoError(t, err)
	require.Equal(t, 2, drops[0].Files)
	left := filesIn(t, quarantine, dir.PageExt)
	require.Len(t, left, 1)
	require.Contains(t, left[0], theirs.Key().String())
	drops, err = r.DropQuarantined(ctx, ours, false)
	require.NoError(t, err)
	require.Equal(t, []QuarantineDrop{{Tier: tier.Local}}, drops)
}

// TestDropQuarantinedFreesRoom: when the tool ends, the ledger no longer counts the removed
// files.
func TestDropQuarantinedFreesRoom(t *testing.T) {
	s, o := openNew(t)
	p := putChain(t, s, prompt(1, testTokens))[0]
	require.NoError(t, s.Close())
	flipAt(t, filePath(o.Local.Root, s.pages.Page(p.Key())), 4200)
	r := openRoot(t, o)
	var roots inspect.Roots
	roots.Local, roots.Remote = r.Dirs()
	_, err := roots.Check(ctx, inspect.CheckOptions{Repair: true})
	require.NoError(t, err)
	all := func(pagefile.Key) bool { return true }
	_, err = r.GC(ctx, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }}) // as kvtier rm does first
	require.NoError(t, err)
	before := readLedgerFile(t, o).Bytes
	drops, err := r.DropQuarantined(ctx, all, false)
	require.NoError(t, err)
	require.Equal(t, physicalPage(t), drops[0].Bytes)
	require.NoError(t, r.Close())
	require.Equal(t, before-drops[0].Bytes, readLedgerFile(t, o).Bytes)
}

// TestBadRemotePageDoesNotWaitForACount: a count holds the commit lock while it lists a shard
// of the remote tier, which may take minutes. A read of a damaged page does not wait for that
// lock.
func TestBadRemotePageDoesNotWaitForACount(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	tokens := prompt(1, testTokens)
	demoteAnew(t, s, tokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	spoil(t, filePath(o.Remote.Root, ref.name(s.pages)))
	l := layoutOf(t, testSections, ref.Stored)
	defer s.remote.files.Hold()()
	read := make(chan error, 1)
	go func() { read <- s.Read(ctx, ref, tokens, l, Into{Rows: make([]byte, l.Size())}) }()
	select {
	case err := <-read:
		require.ErrorIs(t, err, pagefile.ErrDamaged)
	case <-time.After(time.Minute):
		t.Fatal("the read waits for the count")
	}
	require.NoFileExists(t, filePath(o.Remote.Root, ref.name(s.pages)))
}
