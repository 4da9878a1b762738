package diskstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/vfs"
)

func TestRoots(t *testing.T) {
	folder := t.TempDir()
	mk := func(name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := mk("good", 0o755)
	link := filepath.Join(folder, "link")
	require.NoError(t, os.Symlink(good, link))
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cases := map[string]error{
		good: nil, link: tier.ErrRootSymlink, link + "/": tier.ErrRootSymlink, file: tier.ErrRootNotDir,
		mk("group", 0o770): tier.ErrRootMode, mk("world", 0o702): tier.ErrRootMode, filepath.Join(folder, "none"): os.ErrNotExist,
	}
	if os.Geteuid() == 0 {
		foreign := mk("foreign", 0o700)
		require.NoError(t, os.Chown(foreign, 12345, -1))
		cases[foreign] = tier.ErrRootOwner
	}
	for path, want := range cases {
		require.ErrorIs(t, dir.CheckRoot(vfs.OS, path), want, path)
		if want == nil || want == os.ErrNotExist {
			continue
		}
		_, err := Open(ctx, testOptions(t, func(o *Options) { o.Local.Root = path }))
		require.ErrorIs(t, err, want)
		_, err = Open(ctx, testOptions(t, func(o *Options) { o.Remote.Root = path }))
		require.ErrorIs(t, err, want)
	}
}

// TestWhatIsGivenUpLeavesNothingAfterClose closes a tier while an operation on it
// waits, as one that an isolated tier has given up does. When it goes on it must
// not make a temporary file: the lock that stood for it is gone, and the next
// process would take it for the file of a system without locks.
func TestWhatIsGivenUpLeavesNothingAfterClose(t *testing.T) {
	for name, tc := range map[string]struct {
		op vfs.Op // where it waits
		do func(tier *dir.Tier) error
	}{
		"the first change of a ledger": {vfs.OpLock, func(tier *dir.Tier) error {
			_, err := tier.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			return err
		}},
		"a change of a ledger": {vfs.OpOpen, func(tier *dir.Tier) error {
			_, err := tier.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			return err
		}},
		"an upload": {vfs.OpCreate, func(tier *dir.Tier) error {
			up, err := tier.Create(ctx, tiertest.Page(1))
			if err != nil {
				return err
			}
			defer up.Abort()
			_, err = up.Commit(ctx, time.Now())
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCrashWorld(t)
			tier := dir.New(w.inj, w.o.Local.Root, dir.Options{Create: true})
			_, err := tier.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			require.NoError(t, err)
			if name == "the first change of a ledger" {
				require.NoError(t, tier.Close())
				tier = dir.New(w.inj, w.o.Local.Root, dir.Options{Create: true})
			}
			gate := vfs.NewGate()
			w.inj.Add(vfs.Rule{Ops: []vfs.Op{tc.op}, Nth: 1, Gate: gate})
			done := make(chan error, 1)
			go func() { done <- tc.do(tier) }()
			<-gate.Entered()
			var unlocked []string
			w.inj.Watch(func(op vfs.Op, paths ...string) {
				if op == vfs.OpWrite || op == vfs.OpSync {
					found, err := walk(w.mem, w.o.Local.Root)
					if err != nil || len(found.temps) > 0 && len(found.locks) < 2 { // usage.lock and its own
						unlocked = append(unlocked, paths[0])
					}
				}
			})
			closed := make(chan error, 1)
			go func() { closed <- tier.Close() }()
			if tc.op == vfs.OpOpen {
				require.NoError(t, <-closed)
				closed <- nil
			}
			gate.Open()
			require.NoError(t, <-closed)
			<-done // it may have been in time
			w.inj.Watch(nil)
			require.Empty(t, unlocked)
			found, err := walk(w.mem, w.o.Local.Root)
			require.NoError(t, err)
			require.Empty(t, found.temps)
			require.Len(t, found.locks, 1, "%v", found.locks)
		})
	}
}
