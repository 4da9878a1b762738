package diskstore

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
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

// spoil flips one bit of a page's file.
func spoil(t *testing.T, path string) {
	t.Helper()
	flipAt(t, path, -pagefile.FooterBytes-1)
}

// beside opens the store of another machine, with a local tier of its own.
func beside(t *testing.T, o Options) *Store {
	t.Helper()
	o.FS = quickFS
	o.Local.Root = filepath.Join(t.TempDir(), "local")
	require.NoError(t, os.Mkdir(o.Local.Root, 0o700))
	return open(t, o)
}

// demoteAnew makes a store put a page and demote it.
func demoteAnew(t *testing.T, s *Store, tokens []int32) {
	t.Helper()
	p := pageOf(t, s.opt.Fingerprint, 0, tokens)
	require.NoError(t, s.Put(ctx, p))
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	demoted := s.Stats().Demoted
	evictPage(t, s, info)
	require.Equal(t, demoted+1, s.Stats().Demoted)
}

// TestBadPageThatWasReplacedIsNotQuarantined: before one reader moves a bad file to
// quarantine, another process has moved it and stored the page again.
func TestBadPageThatWasReplacedIsNotQuarantined(t *testing.T) {
	for _, before := range []vfs.Op{vfs.OpReadDir, vfs.OpRename} { // before the check of the file, and after it
		s, o, inj := openInjected(t)
		o.FS = quickFS
		other := open(t, o)
		tokens := prompt(1, testTokens)
		p := putChain(t, s, tokens)[0]
		ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
		spoil(t, filePath(o.Local.Root, s.pages.Page(p.Key())))
		var once sync.Once
		inj.Watch(func(op vfs.Op, paths ...string) {
			if op == before && strings.Contains(paths[len(paths)-1], storetest.QuarantineDir) {
				once.Do(func() {
					require.Error(t, readError(t, other, ref, tokens))
					require.NoError(t, other.Put(ctx, pageOf(t, o.Fingerprint, 0, tokens)))
				})
			}
		})
		require.Error(t, readError(t, s, ref, tokens))
		inj.Watch(nil)
		require.True(t, other.Has(p.Key()))
		require.NoError(t, readError(t, other, ref, tokens))
		require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), 1, "the bad one")
		requireCovered(t, o.Local.Root, s, other)
	}
}

// TestLateQuarantineSparesAnothersPage: the mount hangs in the rename, which was given up and
// succeeds after another machine has stored the page again.
func TestLateQuarantineSparesAnothersPage(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	tokens := prompt(1, testTokens)
	demoteAnew(t, s, tokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	require.Equal(t, tier.Remote, ref.Tier)
	path := filePath(o.Remote.Root, ref.name(s.pages))
	spoil(t, path)

	s.guard.StepIn = 50 * time.Millisecond
	gate := hold(inj, vfs.Rule{Path: regexp.MustCompile("quarantine"), Ops: []vfs.Op{vfs.OpRename}})
	require.Error(t, readError(t, s, ref, tokens))
	<-gate.Entered()
	other := beside(t, o)
	demoteAnew(t, other, tokens)
	gate.Open()
	idle(s.guard)
	require.FileExists(t, path)
	require.NoError(t, readError(t, other, ref, tokens))
}

// TestLateRemoveSparesAnothersPage: a machine evicts a page and its mount hangs. The removal
// was given up and succeeds after another machine has demoted the page once more.
func TestLateRemoveSparesAnothersPage(t *testing.T) {
	for name, hangs := range map[string]vfs.Rule{
		"in what takes the page away": {Path: regexp.MustCompile(`\.kvp`), Ops: []vfs.Op{vfs.OpRemove, vfs.OpRename}},
		"in the look before it":       {Path: regexp.MustCompile(`\.kvp`), Ops: []vfs.Op{vfs.OpLstat}, Nth: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, o, inj := openInjected(t, withRemote(t))
			tokens := prompt(1, testTokens)
			demoteAnew(t, s, tokens)
			ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
			there := mustStat(t, s.guard, ref.name(s.pages))
			s.guard.StepIn = 50 * time.Millisecond
			gate := vfs.NewGate()
			hangs.Gate = gate
			inj.Add(hangs)
			_, err := s.remote.files.Drop(ctx, there)
			require.ErrorIs(t, err, tier.ErrTierTimeout)
			<-gate.Entered()
			other := beside(t, o)
			demoteAnew(t, other, tokens)
			gate.Open()
			idle(s.guard)
			require.NoError(t, readError(t, other, ref, tokens))
			require.Empty(t, filesIn(t, o.Remote.Root, dir.TmpExt))
		})
	}
}

// TestRemoveOnAFullShare makes room although the disk has no room for another name.
func TestRemoveOnAFullShare(t *testing.T) {
	s, _, inj := openInjected(t, withRemote(t))
	demoteAnew(t, s, prompt(1, testTokens))
	info := listAll(t, s.remote)[0]
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate, vfs.OpRename}, Err: syscall.ENOSPC})
	removed, err := s.remote.files.Drop(ctx, info)
	require.NoError(t, err)
	require.Equal(t, info.Bytes, removed.Bytes)
	require.Empty(t, listAll(t, s.remote))
}

// inRemote stores prompts of one page each and moves them to the remote tier.
func inRemote(t *testing.T, s *Store, prompts int) {
	t.Helper()
	for i := range prompts {
		info := mustStat(t, s.disk, s.pages.Page(putChain(t, s, prompt(i, testTokens))[0].Key()))
		_, err := s.local.room.Evict(ctx, info, true)
		require.NoError(t, err)
	}
	require.EqualValues(t, prompts, s.Stats().Demoted)
}

// readErr reads the only page of a prompt that s finds; nil when s finds none.
func readErr(t *testing.T, s *Store, seed int) (found int, err error) {
	t.Helper()
	tokens := prompt(seed, testTokens)
	for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
		found++
		err = readError(t, s, ref, tokens)
	}
	return found, err
}

// TestStalePageIsAMiss: another machine removed files that this one has open or has looked up.
// Such errors do not count against the tier.
func TestStalePageIsAMiss(t *testing.T) {
	const prompts = 2 * failuresToOpen
	page := regexp.MustCompile(`remote.*\.kvp$`)
	for _, op := range []vfs.Op{vfs.OpRead, vfs.OpOpen, vfs.OpLstat, vfs.OpStat} {
		s, _, inj := openInjected(t, withRemote(t))
		inRemote(t, s, prompts)
		inj.Add(vfs.Rule{Ops: []vfs.Op{op}, Path: page, Err: syscall.ESTALE})
		for i := range prompts {
			found, err := readErr(t, s, i)
			if op == vfs.OpLstat {
				require.Equal(t, 1, found, "by its branch")
				require.NoError(t, err)
				continue
			}
			require.Equal(t, 1, found)
			require.ErrorIs(t, err, tier.ErrNotFound, op)
		}
		st := s.Stats()
		require.False(t, st.Remote.Down, op)
		require.Zero(t, st.TierErrors, op)
		require.Zero(t, st.Damaged, op)
		inj.Reset()
		found, err := readErr(t, s, 0)
		require.Equal(t, 1, found)
		require.NoError(t, err)
	}
}

// TestStaleFileIsOpenedAgain: another machine replaced the file with a copy that is as good.
func TestStaleFileIsOpenedAgain(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpRead, vfs.OpOpen, vfs.OpLstat, vfs.OpStat} {
		for _, dir := range []string{"remote", "local"} {
			s, _, inj := openInjected(t, withRemote(t))
			if dir == "remote" {
				inRemote(t, s, 1)
			} else {
				putChain(t, s, prompt(0, testTokens))
			}
			inj.Add(vfs.Rule{Ops: []vfs.Op{op}, Path: regexp.MustCompile(dir + `/v1/0.*\.kvp$`), Nth: 1, Err: syscall.ESTALE})
			found, err := readErr(t, s, 0)
			require.Equal(t, 1, found, "%s %s", op, dir)
			require.NoError(t, err, "%s %s", op, dir)
			require.Zero(t, s.Stats().TierErrors)
		}
	}
}

// TestStaleDirectoriesAndLedger: directories and the ledger are replaced frequently.
func TestStaleDirectoriesAndLedger(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpReadDir, vfs.OpRead, vfs.OpOpen} {
		s, _, inj := openInjected(t, withRemote(t))
		tokens := putPrompt(t, s, 0, testTokens+3)
		for _, name := range []pagefile.Name{s.Find(ctx, Prompt{Tokens: tokens}).Exact[1].name(s.pages), s.Find(ctx, Prompt{Tokens: tokens}).Exact[0].name(s.pages)} {
			info := mustStat(t, s.disk, name)
			_, err := s.local.room.Evict(ctx, info, true)
			require.NoError(t, err)
		}
		require.NoError(t, s.Flush(ctx))
		inj.Add(vfs.Rule{Ops: []vfs.Op{op}, Path: regexp.MustCompile(`remote/v1/(.*/tails/|usage.json)`), Nth: 1, Err: syscall.ESTALE})
		require.NoError(t, s.remote.book.Refresh(ctx))
		require.Equal(t, len(tokens), tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact), op)
	}
}

// TestStaleRootTakesTheTierDown: a stale root takes the tier down at once, and the tier comes
// back by its path.
func TestStaleRootTakesTheTierDown(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	inRemote(t, s, 2)
	later := time.Now()
	s.guard.Breaker.Now = func() time.Time { return later }
	inj.Add(vfs.Rule{Path: regexp.MustCompile(`remote($|/)`), Err: syscall.ESTALE})
	tokens := prompt(0, testTokens)
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.True(t, s.Stats().Remote.Down)
	_, err := tier.Stat(ctx, s.guard.Inner, s.pages.Page(pagefile.Key{1}))
	require.ErrorIs(t, err, tier.ErrRootMissing)
	require.ErrorIs(t, err, syscall.ESTALE)

	// The new directory gets the checks of a store that has just been opened.
	inj.Reset()
	require.NoError(t, os.Chmod(o.Remote.Root, 0o777))
	later = later.Add(breakerRest)
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.True(t, s.Stats().Remote.Down)
	_, err = tier.Stat(ctx, s.guard.Inner, s.pages.Page(pagefile.Key{1}))
	require.ErrorIs(t, err, tier.ErrRootMode)
	require.NoError(t, os.Chmod(o.Remote.Root, 0o700))
	later = later.Add(breakerRest)
	readChain(t, s, tokens, testTokens)
	require.False(t, s.Stats().Remote.Down)
	require.DirExists(t, filepath.Join(o.Remote.Root, storetest.VersionDir))
}
