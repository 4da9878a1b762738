package dir

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
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

// TestCrashWhileAnotherMakesTheDirectory: the directory of a prefix is removed with its last
// branch, and made again by the next process with one. A branch added at that moment survives,
// although this process has known the directory as durable for long.
func TestCrashWhileAnotherMakesTheDirectory(t *testing.T) {
	mem, inj, root := inMemory(t)
	mine, theirs := New(mem, root, Options{Create: true}), New(inj, root, Options{Create: true})
	branch := func(key byte) tier.Branch {
		return tier.Branch{Fingerprint: tiertest.Fingerprint, Prefix: pagefile.Key{1}, Class: pagefile.ClassTail, Key: pagefile.Key{key}, Tokens: 1}
	}
	require.NoError(t, mine.AddBranch(ctx, branch(1), true))
	require.NoError(t, mine.RemoveBranch(ctx, branch(1)))

	var once sync.Once
	prefix := pagefile.Key{1}
	dir := filepath.Join(mine.base, prefixDir(tiertest.Fingerprint, prefix))
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op != vfs.OpSyncDir || paths[0] != dir {
			return
		}
		once.Do(func() {
			require.NoError(t, mine.AddBranch(ctx, branch(2), true))
			after := New(mem.Crash(0, 1), root, Options{Create: true})
			branches, err := after.Branches(ctx, tiertest.Fingerprint, prefix[:])
			require.NoError(t, err)
			require.Contains(t, branches, branch(2))
		})
	})
	require.NoError(t, theirs.AddBranch(ctx, branch(3), true))
	once.Do(func() { t.Error("the directory was not made again") })
	after := New(mem.Crash(0, 1), root, Options{Create: true})
	branches, err := after.Branches(ctx, tiertest.Fingerprint, prefix[:])
	require.NoError(t, err)
	require.Len(t, branches, 2)
	require.NoError(t, errors.Join(mine.Close(), theirs.Close()))
}
