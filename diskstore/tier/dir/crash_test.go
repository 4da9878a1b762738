package dir

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// inMemory makes an empty root in a filesystem that simulates power cuts.
func inMemory(t *testing.T) (*vfs.Mem, *vfs.Injector, string) {
	mem, above := vfs.NewMem(1<<30), string(filepath.Separator)
	root := filepath.Join(above, "root")
	require.NoError(t, mem.Mkdir(root))
	require.NoError(t, mem.SyncDir(above))
	return mem, vfs.Inject(mem), root
}

// tempsAndLocks returns the temporary files and the lock files below a root.
func tempsAndLocks(fsys vfs.FS, root string) (temps, locks []string, err error) {
	for _, folder := range []string{filepath.Join(root, versionDir), filepath.Join(root, versionDir, tmpDir)} {
		entries, err := fsys.ReadDir(folder)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			switch path := filepath.Join(folder, e.Name()); filepath.Ext(path) {
			case TmpExt:
				temps = append(temps, path)
			case LockExt:
				locks = append(locks, path)
			}
		}
	}
	return temps, locks, nil
}

// TestWhatIsGivenUpLeavesNothingAfterClose closes a tier while an operation on it waits, like
// an operation that an isolated tier has given up. When the operation continues, it must not
// make a temporary file: the lock that protected such files is gone, and the next process
// would take the file for one of a system without locks.
func TestWhatIsGivenUpLeavesNothingAfterClose(t *testing.T) {
	for name, tc := range map[string]struct {
		op vfs.Op // the operation that waits
		do func(tr *Tier) error
	}{
		"the first change of a ledger": {vfs.OpLock, func(tr *Tier) error {
			_, err := tr.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			return err
		}},
		"a change of a ledger": {vfs.OpOpen, func(tr *Tier) error {
			_, err := tr.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			return err
		}},
		"an upload": {vfs.OpCreate, func(tr *Tier) error {
			up, err := tr.Create(ctx, tiertest.Page(1))
			if err != nil {
				return err
			}
			defer up.Abort()
			_, err = up.Commit(ctx, time.Now())
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			mem, inj, root := inMemory(t)
			tr := New(inj, root, Options{Create: true})
			_, err := tr.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			require.NoError(t, err)
			if name == "the first change of a ledger" {
				require.NoError(t, tr.Close())
				tr = New(inj, root, Options{Create: true})
			}
			gate := vfs.NewGate()
			inj.Add(vfs.Rule{Ops: []vfs.Op{tc.op}, Nth: 1, Gate: gate})
			done := make(chan error, 1)
			go func() { done <- tc.do(tr) }()
			<-gate.Entered()
			var unlocked []string
			inj.Watch(func(op vfs.Op, paths ...string) {
				if op == vfs.OpWrite || op == vfs.OpSync {
					temps, locks, err := tempsAndLocks(mem, root)
					if err != nil || len(temps) > 0 && len(locks) < 2 { // usage.lock and the tier's own
						unlocked = append(unlocked, paths[0])
					}
				}
			})
			closed := make(chan error, 1)
			go func() { closed <- tr.Close() }()
			if tc.op == vfs.OpOpen {
				require.NoError(t, <-closed)
				closed <- nil
			}
			gate.Open()
			require.NoError(t, <-closed)
			<-done // the operation may have been in time
			inj.Watch(nil)
			require.Empty(t, unlocked)
			temps, locks, err := tempsAndLocks(mem, root)
			require.NoError(t, err)
			require.Empty(t, temps)
			require.Len(t, locks, 1, "%v", locks)
		})
	}
}

// TestCrashWhileAnotherMakesTheDirectory: the directory of a parent's tails is removed with
// the last tail, and made again by the next process with a tail. A tail stored at that moment
// survives, although this process has known the directory as durable for long.
func TestCrashWhileAnotherMakesTheDirectory(t *testing.T) {
	mem, inj, root := inMemory(t)
	mine, theirs := New(mem, root, Options{Create: true}), New(inj, root, Options{Create: true})
	tiertest.Upload(t, mine, tiertest.Tail(1, 1), []byte("x"), time.Now())
	_, err := mine.Remove(ctx, tier.Info{Name: tiertest.Tail(1, 1)})
	require.NoError(t, err)

	var once sync.Once
	shard := filepath.Dir(filepath.Dir(mine.Path(tiertest.Tail(1, 2))))
	inj.Watch(func(op vfs.Op, paths ...string) {
		_, err := mem.Lstat(filepath.Dir(mine.Path(tiertest.Tail(1, 2))))
		if op != vfs.OpSyncDir || paths[0] != shard || err != nil {
			return
		}
		once.Do(func() {
			tiertest.Upload(t, mine, tiertest.Tail(1, 2), []byte("y"), time.Now())
			after := New(mem.Crash(0, 1), root, Options{Create: true})
			_, err := after.Stat(ctx, tiertest.Tail(1, 2))
			require.NoError(t, err)
		})
	})
	tiertest.Upload(t, theirs, tiertest.Tail(1, 3), []byte("z"), time.Now())
	once.Do(func() { t.Error("the directory was not made again") })
	require.NoError(t, errors.Join(mine.Close(), theirs.Close()))
}
