package diskstore

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/tombstones"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// gone returns the path of a root's list of removed pages.
func gone(root string) string { return filepath.Join(root, storetest.VersionDir, "gone") }

// requireGone requires that a new process knows why a page left a tier.
func requireGone(t *testing.T, o Options, key pagefile.Key, where string, reason TombstoneReason) {
	t.Helper()
	g, ok := open(t, o).Gone(ctx, key)
	require.True(t, ok)
	require.Equal(t, where, g.Tier)
	require.Equal(t, reason, g.Reason)
	require.WithinDuration(t, time.Now(), g.When, time.Hour)
}

// A later process knows of each page why it went, and nothing of pages that did not go.
func TestTombstones(t *testing.T) {
	for name, test := range map[string]struct {
		remote bool
		remove func(t *testing.T, o Options, s *Store)
		where  string
		reason TombstoneReason
	}{
		"eviction": {remove: func(t *testing.T, o Options, s *Store) {
			s.local.room.EvictAll(ctx, listAll(t, s.local), 1<<40, 1<<40)
		}, where: tier.Local, reason: TombstoneRoom},
		"eviction from below": {remote: true, remove: func(t *testing.T, o Options, s *Store) {
			s.local.room.EvictAll(ctx, listAll(t, s.local), 1<<40, 1<<40)
			require.Empty(t, s.local.tombstones.Fresh(), "they moved down")
			s.remote.room.EvictAll(ctx, listAll(t, s.remote), 1<<40, 1<<40)
		}, where: tier.Remote, reason: TombstoneRoom},
		"command": {remove: func(t *testing.T, o Options, s *Store) {
			r := openRoot(t, o)
			gcWith(t, r, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }, DryRun: true})
			require.Zero(t, r.s.local.tombstones.Fresh())
			gcWith(t, r, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
			require.NoError(t, r.Close())
		}, where: tier.Local, reason: TombstoneRemoved},
		"reclaim": {remove: func(t *testing.T, o Options, s *Store) {
			o.Fingerprint = testFingerprint(2)
			other := open(t, o)
			found := scan(t, other)
			_, err := other.Reclaim(ctx, found, func(FingerprintUsage) bool { return true })
			require.NoError(t, err)
			require.NoError(t, other.Close())
		}, where: tier.Local, reason: TombstoneUnused},
		"damage": {remove: func(t *testing.T, o Options, s *Store) {
			for _, info := range listAll(t, s.local)[:1] {
				path := filePath(o.Local.Root, info.Name)
				flipAt(t, path, -1)
				require.NoError(t, os.Chtimes(path, info.Used, info.Used))
			}
			tokens := prompt(1, 3*testTokens+2)
			for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
				_ = readError(t, s, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens])
			}
		}, where: tier.Local, reason: TombstoneDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			if test.remote {
				withRemote(t)(&o)
			}
			s := open(t, o)
			pages := putChain(t, s, prompt(1, 3*testTokens+2))
			key := pages[0].Key()
			if test.reason == TombstoneDamaged {
				key = listAll(t, s.local)[0].Key
			}
			_, ok := s.Gone(ctx, key)
			require.False(t, ok, "it is there")
			test.remove(t, o, s)
			if name != "command" && name != "reclaim" {
				g, ok := s.Gone(ctx, key)
				require.True(t, ok, "at once")
				require.Equal(t, test.reason, g.Reason)
			}
			require.NoError(t, s.Close())
			requireGone(t, o, key, test.where, test.reason)
			if test.reason != TombstoneDamaged {
				requireGone(t, o, pages[3].Key(), test.where, test.reason) // the tail
			}
			_, ok = open(t, o).Gone(ctx, pagefile.Key{1, 2, 3})
			require.False(t, ok)
			require.NotContains(t, test.reason.String(), "does not know")
		})
	}
}

// Several processes write one list, and a list is bounded.
func TestTombstonesOfSeveralProcesses(t *testing.T) {
	o := testOptions(t)
	a, b := open(t, o), open(t, o)
	for i := range tombstones.Max {
		a.local.noteGone(tier.Info{Name: a.pages.Page(pagefile.Key{1, byte(i), byte(i >> 8)})}, TombstoneRoom)
	}
	b.local.noteGone(tier.Info{Name: b.pages.Page(pagefile.Key{2})}, TombstoneRoom)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	info, err := os.Stat(gone(o.Local.Root))
	require.NoError(t, err)
	require.EqualValues(t, tombstones.BytesMax, info.Size())
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	for _, key := range []pagefile.Key{{1, 0xff, 0x3f}, {2}} {
		requireGone(t, o, key, tier.Local, TombstoneRoom)
	}
}

// With any bytes in the list, a store works, and says nothing wrong.
func TestTombstonesOfHostileBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, 31, 32, 4096, 1<<20 + 1, 3 << 20} {
		s, o := openNew(t)
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(rng.Uint32())
		}
		require.NoError(t, os.WriteFile(gone(o.Local.Root), content, 0o600))
		pages := putChain(t, s, prompt(1, testTokens))
		_, ok := s.Gone(ctx, pages[0].Key())
		require.False(t, ok)
		s.local.room.EvictAll(ctx, listAll(t, s.local), 1, 1)
		require.NoError(t, s.Close())
		requireGone(t, o, pages[0].Key(), tier.Local, TombstoneRoom)
	}
	s, o := openNew(t)
	require.NoError(t, os.Mkdir(gone(o.Local.Root), 0o700))
	putChain(t, s, prompt(1, testTokens))
	s.local.room.EvictAll(ctx, listAll(t, s.local), 1, 1)
	require.NoError(t, s.Flush(ctx))
	require.NotZero(t, s.local.tombstones.Fresh())
}

// A list that cannot be written costs nothing, and is written when it can be.
func TestTombstonesThatCannotBeWritten(t *testing.T) {
	s, o, inj := openInjected(t)
	page := putChain(t, s, prompt(1, testTokens))[0]
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Path: regexp.MustCompile(`/gone$`), Err: syscall.EIO})
	s.local.room.EvictAll(ctx, listAll(t, s.local), 1, 1)
	require.NoError(t, s.Flush(ctx))
	require.NoFileExists(t, gone(o.Local.Root))
	g, ok := s.Gone(ctx, page.Key())
	require.True(t, ok)
	require.Equal(t, TombstoneRoom, g.Reason)
	inj.Reset()
	require.NoError(t, s.Flush(ctx))
	require.FileExists(t, gone(o.Local.Root))
	require.Empty(t, filesIn(t, o.Local.Root, ".tmp"))
	requireCovered(t, o.Local.Root, s)
	requireExact(t, s)
	_, ok = s.Gone(ctx)
	require.False(t, ok)
}

// A page that fails its check and stays in its place counts as damaged in this process.
func TestTombstoneOfABadFileInItsPlace(t *testing.T) {
	s := open(t, testOptions(t))
	putChain(t, s, prompt(1, testTokens))
	info := listAll(t, s.local)[0]
	s.local.checked.Bad.Note(info, 0)
	g, ok := s.Gone(ctx, info.Key)
	require.True(t, ok)
	require.Equal(t, TombstoneDamaged, g.Reason)
}

// lateTombstones is a tier below which reads and writes the list late, and counts that.
type lateTombstones struct {
	tier.Disk
	asked atomic.Int32
	late  atomic.Bool
}

func (l *lateTombstones) Tombstones(ctx context.Context, change func([]byte) []byte) ([]byte, error) {
	l.asked.Add(1)
	if l.late.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.Disk.Tombstones(ctx, change)
}

// The list of a remote tier is read once in a while, and a tier on which that takes too long has
// not failed: pages are read from it.
func TestTombstonesOfASlowTier(t *testing.T) {
	o := testOptions(t)
	below := &lateTombstones{Disk: dir.New(quickFS, storetest.PrivateDir(t), dir.Options{})}
	below.late.Store(true)
	o.RemoteTier, o.RemoteTimeout, o.ReadTimeout = below, 2*time.Second, time.Minute
	s := open(t, o)
	some, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancel()
	_, ok := s.Gone(some, pagefile.Key{1})
	require.False(t, ok)
	_, remote := s.Failures()
	require.Zero(t, remote)
	require.False(t, s.guard.Breaker.Down())

	below.late.Store(false)
	before := below.asked.Load()
	now := time.Now()
	s.now = func() time.Time { return now }
	for range 5 {
		_, ok := s.Gone(ctx, pagefile.Key{1})
		require.False(t, ok)
	}
	require.Equal(t, before+1, below.asked.Load())
	now = now.Add(remoteTombstonesEvery)
	s.Gone(ctx, pagefile.Key{1})
	require.Equal(t, before+2, below.asked.Load())
}

func TestElsewhere(t *testing.T) {
	o := testOptions(t, withRemote(t))
	tokens := prompt(1, 3*testTokens+2)
	for name, other := range map[string]struct {
		identity map[string]string
		page     int
		tokens   []int32
		want     int
	}{
		"type":      {map[string]string{"cache_type": "q8_0"}, testTokens, tokens, 3 * testTokens},
		"namespace": {map[string]string{"namespace": "n"}, testTokens, tokens[:testTokens], testTokens},
		"page size": {map[string]string{"page_tokens": "3"}, 3, tokens, len(tokens) / 3 * 3},
		"a tail":    {map[string]string{"engine": "e"}, testTokens, tokens[:2], 2},
		"no such":   {map[string]string{"engine": "f"}, testTokens, prompt(2, 3*testTokens), 0},
	} {
		other, name := other, name
		t.Run(name, func(t *testing.T) {
			theirs := o
			theirs.Local.Root, theirs.Fingerprint = filepath.Join(t.TempDir(), "local"), testFingerprint(2)
			ours := theirs
			theirs.Identity, theirs.PageTokens, ours.Fingerprint = other.identity, other.page, testFingerprint(3)
			putChain(t, open(t, theirs), other.tokens)
			found := open(t, ours).Elsewhere(ctx, tokens, nil)
			if other.want == 0 {
				require.Empty(t, found)
				return
			}
			require.Equal(t, []Elsewhere{{Fingerprint: theirs.Fingerprint, Identity: other.identity, Tier: tier.Local, PageTokens: other.page, Tokens: other.want}}, found)
			require.Empty(t, open(t, theirs).Elsewhere(ctx, tokens, nil), "its own")
		})
	}
}

// Of many fingerprints the latest are looked into, and none without a manifest.
func TestElsewhereIsBounded(t *testing.T) {
	o := testOptions(t)
	tokens := prompt(1, 2*testTokens)
	for i := range 2 * elsewhereMax {
		theirs := o
		theirs.Fingerprint = testFingerprint(byte(10 + i))
		s := open(t, theirs)
		s.now = func() time.Time { return time.Now().Add(time.Duration(i-100) * time.Hour) }
		putChain(t, s, tokens)
		require.NoError(t, s.Close())
	}
	s := open(t, o)
	scan(t, s)
	found := s.Elsewhere(ctx, tokens, nil)
	require.Len(t, found, elsewhereMax)
	require.Equal(t, testFingerprint(byte(10+2*elsewhereMax-1)), found[0].Fingerprint)
	require.NoError(t, os.Remove(filePath(o.Local.Root, pagefile.Name{Fingerprint: found[0].Fingerprint, Class: pagefile.ClassManifest})))
	require.Len(t, s.Elsewhere(ctx, tokens, nil), elsewhereMax-1)
	require.NoError(t, s.Close())
	require.Empty(t, s.Elsewhere(ctx, tokens, nil))
}
