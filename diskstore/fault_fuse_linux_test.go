package diskstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/mounts"
)

// mountedRemote is a store whose remote tier is on a FUSE mount.
type mountedRemote struct {
	*Store
	t      *testing.T
	mount  *mounts.Passthrough
	behind string // the remote root without the mount
}

// openMounted returns a store with the first page of tokens in the local tier and the second
// in the remote one.
func openMounted(t *testing.T, tokens []int32) *mountedRemote {
	source := t.TempDir()
	behind := filepath.Join(source, "kv")
	require.NoError(t, os.Mkdir(behind, 0o700))
	mount := mounts.NewPassthrough(t, source)
	o := testOptions(t, withFS(vfs.OS), func(o *Options) {
		o.Remote.Root = filepath.Join(mount.Dir, "kv")
		o.RemoteTimeout, o.ReadTimeout = time.Minute, time.Minute
	})
	s := start(t, o)
	m := &mountedRemote{Store: s, t: t, mount: mount, behind: behind}
	t.Cleanup(func() { closeInTime(t, s) }) // before the unmount
	require.NoError(t, s.Flush(ctx))
	pages := putChain(t, s, tokens)
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, m.moveDown(pages[1].Key()))
	require.Len(t, filesIn(t, behind, dir.PageExt), 1)
	return m
}

// patience sets the time limit of the remote tier. Tests use a minute where the mount works,
// because the machine may be busy, and little where the mount does not.
func (m *mountedRemote) patience(limit time.Duration) {
	m.guard.LookupIn, m.guard.StepIn = limit, limit
	setRemoteTimeout(m.Store, limit)
}

// moveDown moves a page to the remote tier if it can.
func (m *mountedRemote) moveDown(key pagefile.Key) error {
	info, err := tier.Stat(ctx, m.disk, m.pages.Page(key))
	require.NoError(m.t, err)
	if err := m.demote(ctx, info); err != nil {
		return err
	}
	dropPage(m.t, m.Store.local, info)
	return nil
}

// troubles are the failures of a mount. Each returns its repair.
var troubles = map[string]func(m *mountedRemote, ops []mounts.Op) (repair func()){
	"stalls": func(m *mountedRemote, ops []mounts.Op) func() {
		m.mount.Stall(ops...)
		return m.mount.Heal
	},
	"is stale": func(m *mountedRemote, ops []mounts.Op) func() {
		m.mount.Fail(syscall.ESTALE, ops...)
		return m.mount.Heal
	},
	"has bad sectors": func(m *mountedRemote, ops []mounts.Op) func() {
		m.mount.Fail(syscall.EIO, ops...)
		return m.mount.Heal
	},
	"dies": func(m *mountedRemote, ops []mounts.Op) func() {
		acted := m.whenEntered(ops, m.mount.Kill)
		return func() { <-acted; m.remount() }
	},
	"vanishes": func(m *mountedRemote, ops []mounts.Op) func() {
		acted := m.whenEntered(ops, m.mount.Vanish)
		return func() { <-acted; m.remount() }
	},
}

// whenEntered calls act as soon as one of the requests is being served.
func (m *mountedRemote) whenEntered(ops []mounts.Op, act func()) (acted <-chan struct{}) {
	entered := m.mount.Stall(ops...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-entered
		act()
	}()
	return done
}

func (m *mountedRemote) remount() {
	m.mount.Unmount()
	m.mount.Mount()
}

// works checks that the remote tier is used again after a repair.
func (m *mountedRemote) works(repair func()) {
	t := m.t
	repair()
	require.NoError(t, m.Flush(ctx))
	// Operations that were given up have ended before the time limit changes.
	idle(m.guard)
	m.patience(time.Minute)
	m.guard.Breaker.Success()
	requireWhole(t, filesIn(t, filepath.Join(m.behind, storetest.VersionDir, m.opt.Fingerprint.String()), dir.PageExt)...)
}

// TestMountFailsMidRead reads pages while the mount below the remote tier fails.
func TestMountFailsMidRead(t *testing.T) {
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			tokens := prompt(1, 3*testTokens)
			m := openMounted(t, tokens)
			refs := m.Find(ctx, Prompt{Tokens: tokens}).Exact
			require.Equal(t, len(tokens), tokensIn(refs))
			require.Equal(t, tier.Remote, refs[1].Tier)
			m.patience(30 * time.Millisecond)
			repair := trouble(m, []mounts.Op{mounts.OpRead})
			l := layoutOf(t, testSections, testTokens)
			buf := make([]byte, l.Size())
			for range 2 * failuresToOpen {
				readRef(t, m.Store, refs[0], tokens)
				require.Error(t, m.Read(ctx, refs[1], tokens[testTokens:2*testTokens], l, Into{Rows: buf}))
				readRef(t, m.Store, refs[2], tokens)
			}
			// A stale file is a miss. Below a mount point without its mount, look-ups find
			// nothing, at once.
			require.True(t, m.Stats().Remote.Down || name == "vanishes" || name == "is stale", "no operation reaches a tier that does not answer")
			require.Zero(t, m.Stats().Damaged)

			// The page is computed again and stored locally.
			putChain(t, m.Store, tokens)
			readChain(t, m.Store, tokens, len(tokens))
			require.NoError(t, m.Flush(ctx))

			m.works(repair)
			dropPage(t, m.Store.local, mustStat(t, m.disk, m.pages.Page(refs[1].Key)))
			readChain(t, m.Store, tokens, len(tokens))
			require.NoError(t, m.Flush(ctx))
			require.False(t, m.Stats().Remote.Down)
			require.EqualValues(t, 1, m.Stats().Promoted)
		})
	}
}

// TestMountFailsMidWrite demotes pages while the mount below the remote tier fails.
func TestMountFailsMidWrite(t *testing.T) {
	statesOneByOne(t)
	steps := map[string][]mounts.Op{
		"create": {mounts.OpCreate}, "write": {mounts.OpWrite}, "sync": {mounts.OpFsync}, "close": {mounts.OpFlush},
		"rename": {mounts.OpRename}, "sync of the directory": {mounts.OpFsyncDir},
	}
	for step, ops := range steps {
		for name, trouble := range troubles {
			t.Run(step+" "+name, func(t *testing.T) {
				tokens := prompt(1, 3*testTokens)
				m := openMounted(t, tokens)
				refs := m.Find(ctx, Prompt{Tokens: tokens}).Exact
				m.patience(30 * time.Millisecond)
				repair := trouble(m, ops)
				for range failuresToOpen {
					if err := m.moveDown(refs[2].Key); err != nil {
						require.True(t, m.Has(refs[2].Key), "a page that was not moved stays")
					}
					if !m.Has(refs[2].Key) {
						break // closing failed without an error
					}
				}
				readRef(t, m.Store, refs[0], tokens)
				putChain(t, m.Store, prompt(2, testTokens))
				require.NoError(t, m.Flush(ctx))

				m.works(repair)
				if m.Has(refs[2].Key) {
					require.NoError(t, m.moveDown(refs[2].Key))
				}
				readChain(t, m.Store, tokens, len(tokens))
				require.NoError(t, m.Flush(ctx))
				require.Zero(t, m.Stats().Damaged)
				require.NoError(t, m.Close())

				// The next process cleans up when it first writes there.
				s := start(t, m.opt)
				require.NoError(t, s.Flush(ctx))
				p := putChain(t, s, prompt(3, testTokens))[0]
				require.NoError(t, s.demote(ctx, mustStat(t, s.disk, s.pages.Page(p.Key()))))
				require.Empty(t, filesIn(t, m.behind, dir.TmpExt))
				require.NoError(t, s.Close())
			})
		}
	}
}

// TestVanishedMountIsNotFilled removes the mount and lets a store demote.
func TestVanishedMountIsNotFilled(t *testing.T) {
	tokens := prompt(1, 3*testTokens)
	m := openMounted(t, tokens)
	refs := m.Find(ctx, Prompt{Tokens: tokens}).Exact
	m.mount.Vanish()
	require.Error(t, m.moveDown(refs[2].Key))
	entries, err := os.ReadDir(m.mount.Dir)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is written below a mount point without its mount")
	require.Equal(t, testTokens, tokensIn(m.Find(ctx, Prompt{Tokens: tokens}).Exact), "the rest is computed again")
	m.works(m.remount)
	readChain(t, m.Store, tokens, len(tokens))
	require.NoError(t, m.Flush(ctx))
}

// TestInterruptedSystemCalls interrupts every kind of request of a real filesystem once,
// before each operation of a store.
func TestInterruptedSystemCalls(t *testing.T) {
	source := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(source, "kv"), 0o700))
	mount := mounts.NewPassthrough(t, source)
	o := testOptions(t, withFS(vfs.OS), func(o *Options) { o.Local.Root = filepath.Join(mount.Dir, "kv") })
	tokens := prompt(1, testTokens+3)
	for _, op := range mounts.AllOps {
		t.Run(string(op), func(t *testing.T) {
			interrupt := func() {
				mount.Heal()
				mount.FailOnce(syscall.EINTR, op)
			}
			interrupt()
			s := start(t, o)
			interrupt()
			putChain(t, s, tokens)
			interrupt()
			refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
			require.Equal(t, len(tokens), tokensIn(refs))
			interrupt()
			readRef(t, s, refs[0], tokens)
			interrupt()
			scan(t, s)
			interrupt()
			require.NoError(t, s.local.room.Collect(ctx, room.Demand{Disk: 1}))
			mount.Heal()
			require.NoError(t, os.RemoveAll(filepath.Join(source, "kv", storetest.VersionDir)))
			require.NoError(t, s.Close())
		})
	}
}
