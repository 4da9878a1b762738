package diskstore

import (
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestATailThatComesDuringARemoval: another process stores a tail while all pages of its model are
// removed. The tail stays, and is found.
func TestATailThatComesDuringARemoval(t *testing.T) {
	for _, moment := range []string{dir.ManifestFile, "tail-"} {
		o := testOptions(t)
		other := open(t, o)
		inj := vfs.Inject(quickFS)
		o2 := o
		o2.FS = inj
		mine := open(t, o2)
		putChain(t, other, prompt(1, testTokens+2))
		var once sync.Once
		inj.Watch(func(op vfs.Op, paths ...string) {
			if op == vfs.OpRemove && regexp.MustCompile("^"+moment).MatchString(filepath.Base(paths[0])) {
				once.Do(func() { putChain(t, other, []int32{5, 6, 7}) })
			}
		})
		_, err := mine.local.purge(ctx, purge{fingerprint: o.Fingerprint, removed: func(tier.Info) {}})
		require.NoError(t, err)
		once.Do(func() { t.Error("the moment did not come") })
		require.NoError(t, other.Close())
		readChain(t, open(t, o), []int32{5, 6, 7, 8}, 3)
	}
}

// TestATailWithoutABranchRemovesNoOther: a disk is full after the tail and before its branch.
func TestATailWithoutABranchRemovesNoOther(t *testing.T) {
	o := testOptions(t)
	inj := vfs.Inject(quickFS)
	o.FS = inj
	s := open(t, o)
	putChain(t, s, []int32{5, 6})
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate}, Path: regexp.MustCompile(`tail-3-`), Err: syscall.ENOSPC})
	require.Error(t, s.Put(ctx, chainOf(t, s, []int32{5, 6, 7})[0]))
	require.NoError(t, s.Close())
	o.FS = quickFS
	readChain(t, open(t, o), []int32{5, 6, 7, 8}, 2)
}

// TestStaleBranchesCostNoTries: after most of many siblings left at once, those that stayed are found.
func TestStaleBranchesCostNoTries(t *testing.T) {
	s := open(t, testOptions(t))
	stored := prompt(1, testTokens)
	for seed := range 40 {
		putChain(t, s, parted(stored, 6, testTokens, seed))
	}
	infos := listAll(t, s.local)
	for _, info := range infos[:len(infos)-1] {
		dropPage(t, s.local, info)
	}
	require.Equal(t, 6, tokensIn(s.Find(ctx, Prompt{Tokens: parted(stored, 6, testTokens, 100)}).Exact))
}

// TestAdoptionGoesOn: an old branch whose page cannot be read holds no other up, and a later look-up
// tries again.
func TestAdoptionGoesOn(t *testing.T) {
	s, o := openNew(t)
	for seed := range 3 {
		putChain(t, s, prompt(seed, testTokens))
	}
	bad := s.Find(ctx, Prompt{Tokens: prompt(1, testTokens)}).Exact[0].Key
	require.NoError(t, s.Close())
	makeOld(t, o)
	inj := vfs.Inject(quickFS)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpOpen}, Path: regexp.MustCompile(bad.String() + `\.kvp`), Err: syscall.EIO})
	o.FS = inj
	s = open(t, o)
	look := func() {
		s.Find(ctx, Prompt{Tokens: []int32{-1, -2, -3}})
		require.NoError(t, s.Flush(ctx))
	}
	look()
	require.Len(t, branchesOf(t, s, s.disk), 2)
	require.NoError(t, s.Close())
	o.FS = quickFS
	s = open(t, o)
	look()
	require.Len(t, branchesOf(t, s, s.disk), 3)
	require.NoDirExists(t, filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String(), storetest.OldBranches))
}
