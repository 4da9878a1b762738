//go:build unix

package diskstore

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// lookAgain makes the next stat of a file below a root fail, as in another root: the tier then
// checks its root at once.
func lookAgain(inj *vfs.Injector, root string) {
	inj.Reset()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLstat}, Path: regexp.MustCompile(regexp.QuoteMeta(root) + `.*\.kvp$`), Nth: 1, Err: syscall.ESTALE})
}

// TestRootSwappedAfterOpen: a user with the right to write to the directory above replaces the
// root by a directory with pages that other users may write to.
func TestRootSwappedAfterOpen(t *testing.T) {
	var log strings.Builder
	s, o := openNew(t, withFS(nil), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	tokens := putPrompt(t, s, 1, testTokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	read := func() error { return readError(t, s, ref, tokens) }

	require.NoError(t, os.Rename(o.Local.Root, o.Local.Root+".old"))
	require.NoError(t, os.CopyFS(o.Local.Root, os.DirFS(o.Local.Root+".old")))
	require.NoError(t, os.Chmod(o.Local.Root, 0o777))
	require.NoError(t, os.Chmod(filePath(o.Local.Root, ref.name(s.pages)), 0o600))
	before := filesIn(t, o.Local.Root, dir.PageExt)
	require.ErrorIs(t, read(), tier.ErrRootMode, "no byte of the root is used")
	for seed := range 3 {
		require.Error(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(7+seed, testTokens))))
	}
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.False(t, s.Has(ref.Key))
	require.True(t, s.Stats().Local.Down)
	require.Equal(t, before, filesIn(t, o.Local.Root, dir.PageExt), "no file is written to the root")
	require.Equal(t, 1, strings.Count(log.String(), "cannot be used any more"))

	// A link to the right directory is refused as well.
	require.NoError(t, os.RemoveAll(o.Local.Root))
	require.NoError(t, os.Symlink(o.Local.Root+".old", o.Local.Root))
	require.Error(t, read())
	require.Error(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(20, testTokens))))

	require.NoError(t, os.Remove(o.Local.Root))
	require.NoError(t, os.Rename(o.Local.Root+".old", o.Local.Root))
	require.NoError(t, read())
	putChain(t, s, prompt(21, testTokens))
	require.False(t, s.Stats().Local.Down)
	require.Equal(t, 1, strings.Count(log.String(), "can be used again"))
	require.NotContains(t, log.String(), "replaced by another")
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir), dir.LockExt), 1)
}

// TestRootWhoseModeChanges: the next check finds the change, and operations by path do as
// well.
func TestRootWhoseModeChanges(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	inRemote(t, s, 1)
	for _, dir := range []string{o.Local.Root, o.Remote.Root, filepath.Join(o.Local.Root, storetest.VersionDir)} {
		lv := s.local
		if dir == o.Remote.Root {
			lv = s.remote
		}
		later := time.Now()
		s.guard.Breaker.Now = func() time.Time { return later }
		require.NoError(t, os.Chmod(dir, 0o770))
		lookAgain(inj, lv.config.Root)
		_, err := tier.Stat(ctx, lv.tier, s.pages.Page(pagefile.Key{1}))
		require.ErrorIs(t, err, tier.ErrRootMode)
		require.True(t, s.Stats().Local.Down || s.Stats().Remote.Down)
		require.NoError(t, os.Chmod(dir, 0o700))
		later = later.Add(breakerRest)
		requireNone(t, lv.tier, s.pages.Page(pagefile.Key{1}))
		require.False(t, s.Stats().Local.Down || s.Stats().Remote.Down)
	}
}

// TestShareThatWasUnmounted: below the mount point is a directory that is as safe, and on the
// wrong disk.
func TestShareThatWasUnmounted(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	inRemote(t, s, 1)
	require.NoError(t, os.Rename(o.Remote.Root, o.Remote.Root+".mounted"))
	require.NoError(t, os.Mkdir(o.Remote.Root, 0o700))
	lookAgain(inj, o.Remote.Root)
	later := time.Now()
	s.guard.Breaker.Now = func() time.Time { return later }
	p := putChain(t, s, prompt(5, testTokens))[0]
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	_, err := tier.Stat(ctx, s.guard, info.Name)
	require.ErrorIs(t, err, tier.ErrRootChanged)
	require.ErrorIs(t, s.demote(ctx, info), tier.ErrTierDown)
	require.True(t, s.Stats().Remote.Down)
	entries, err := os.ReadDir(o.Remote.Root)
	require.NoError(t, err)
	require.Empty(t, entries)

	require.NoError(t, os.Remove(o.Remote.Root))
	require.NoError(t, os.Rename(o.Remote.Root+".mounted", o.Remote.Root))
	later = later.Add(breakerRest)
	require.NoError(t, s.demote(ctx, info))
	require.False(t, s.Stats().Remote.Down)
}

// TestRootReplacedByAnother: a person has replaced the root by another directory that is as
// safe. Room is claimed in the new directory before any write to it.
func TestRootReplacedByAnother(t *testing.T) {
	var log strings.Builder
	o, inj := injected(t, func(o *Options) {
		o.Local.BudgetBytes = 100 * physicalPage(t)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	other := o
	other.Local.Root += ".other"
	before := open(t, other)
	putPages(t, before, 100, 100+60)
	require.NoError(t, before.Close())

	s := open(t, o)
	putPages(t, s, 0, 60)
	require.NoError(t, os.Rename(o.Local.Root, o.Local.Root+".old"))
	require.NoError(t, os.Rename(other.Local.Root, o.Local.Root))
	lookAgain(inj, o.Local.Root)
	for i := range 60 {
		putChain(t, s, prompt(200+i, testTokens))
		require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes)
	}
	require.NoError(t, s.Flush(ctx))
	l, err := s.local.book.Read(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, l.Figure(), occupied(t, o.Local.Root))
	require.Equal(t, 1, strings.Count(log.String(), "replaced by another"))
}

// TestRoomIsClaimedInTheRootThatReplacesAnother: a claim in the ledger of the previous
// directory is no claim in the ledger of the directory that replaced it.
func TestRoomIsClaimedInTheRootThatReplacesAnother(t *testing.T) {
	inBoth := func(t *testing.T, s *Store, seed int) {
		require.NoError(t, s.demote(ctx, mustStat(t, s.disk, s.pages.Page(putChain(t, s, prompt(seed, testTokens))[0].Key()))))
	}
	for _, name := range []string{tier.Local, tier.Remote} {
		t.Run(name, func(t *testing.T) {
			o, inj := injected(t, withRemote(t))
			other := o
			other.Local.Root += ".other"
			other.Remote.Root += ".other"
			require.NoError(t, os.Mkdir(other.Remote.Root, 0o700))
			before := open(t, other)
			inBoth(t, before, 1)
			require.NoError(t, before.Close())

			s := open(t, o)
			inBoth(t, s, 2) // claims room for many pages in both tiers
			lv := s.tiers.named(name)
			root := lv.config.Root
			require.NoError(t, os.Rename(root, root+".old"))
			require.NoError(t, os.Rename(root+".other", root))
			lookAgain(inj, root)
			requireNone(t, lv.tier, s.pages.Page(pagefile.Key{1}))
			inBoth(t, s, 3)
			l := readLedgerFile(t, Options{Local: TierConfig{Root: root}})
			require.GreaterOrEqual(t, l.Figure(), occupied(t, root))
		})
	}
}

// TestDirectorySwappedForALink: prompts neither leave a root nor come from elsewhere through a
// link in a directory's place.
func TestDirectorySwappedForALink(t *testing.T) {
	s, o := openNew(t, withFS(nil), withRemote(t))
	tokens := putPrompt(t, s, 1, 2*testTokens)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	folder, outside := filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String()), filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.Rename(folder, outside))
	require.NoError(t, os.Symlink(outside, folder))
	before := filesIn(t, outside, dir.PageExt)

	require.ErrorIs(t, readError(t, s, refs[0], tokens[:testTokens]), tier.ErrNotFound)
	for seed := range 4 {
		err := s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(10+seed, testTokens)))
		require.ErrorContains(t, err, folder)
	}
	require.Error(t, s.disk.Touch(ctx, s.pages.Page(refs[0].Key), time.Unix(1_700_000_000, 0)))
	removed, _ := s.disk.Remove(ctx, tier.Info{Name: s.pages.Page(refs[0].Key)})
	require.False(t, removed)
	require.Equal(t, before, filesIn(t, outside, dir.PageExt))

	require.NoError(t, os.Remove(folder))
	require.NoError(t, os.Rename(outside, folder))
	readChain(t, s, tokens, len(tokens))
	putChain(t, s, prompt(20, testTokens))
}
