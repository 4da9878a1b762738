package dir

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

func TestContract(t *testing.T) {
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		return New(vfs.OS, filepath.Join(t.TempDir(), "a", "root"), Options{Create: true})
	})
}

func TestStaleTemporaryFilesAreCleaned(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	alive := New(vfs.OS, root, Options{Create: true})
	living, err := alive.Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	defer func() {
		living.Abort()
		require.NoError(t, alive.Close())
	}()
	tmp := filepath.Join(root, versionDir, tmpDir)
	dead := filepath.Join(tmp, "00dead-1.tmp")
	for _, path := range []string{dead, filepath.Join(tmp, "00dead.lock"), filepath.Join(tmp, "0old-1.tmp"), filepath.Join(tmp, "0new-1.tmp")} {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	}
	past := time.Now().Add(-2 * OrphanAge)
	require.NoError(t, os.Chtimes(filepath.Join(tmp, "0old-1.tmp"), past, past))

	next := New(vfs.OS, root, Options{Create: true})
	_, err = next.Temp.claim()
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(tmp, "*"+TmpExt))
	require.NoError(t, err)
	require.Len(t, left, 2, "files that are or may be a living process's stay: %v", left)
	require.NoFileExists(t, dead)
	require.NoError(t, next.Close())
	locks, err := filepath.Glob(filepath.Join(tmp, "*"+LockExt))
	require.NoError(t, err)
	require.Len(t, locks, 1)
}

func TestLimitOfKnownDirectories(t *testing.T) {
	tier := New(storetest.QuickFS, filepath.Join(t.TempDir(), "root"), Options{Create: true})
	require.NoError(t, tier.ensureDir(tier.base))
	for i := len(tier.known); i < maxKnownDirs-1; i++ {
		tier.known[string(rune(i))] = true
	}
	require.NoError(t, tier.ensureDir(filepath.Join(tier.base, "a")))
	require.Len(t, tier.known, maxKnownDirs, "the largest number of directories is known")
	require.NoError(t, tier.ensureDir(filepath.Join(tier.base, "b")))
	require.Len(t, tier.known, 2, "one more, and the others are dropped except its parent")
	require.NoError(t, tier.ensureDir(filepath.Join(tier.base, "a")), "and found again")
	require.NoError(t, tier.Close())
}

// TestAFileMadeBeforeDeath, and after another process has listed the files, is removed with the
// others of the dead process.
func TestAFileMadeBeforeDeath(t *testing.T) {
	inj, gate := vfs.Inject(storetest.QuickFS), vfs.NewGate()
	tr := New(inj, storetest.PrivateDir(t), Options{})
	defer func() { require.NoError(t, tr.Close()) }()
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
	dead := filepath.Join(tr.Temp.dir, "1.2.3")
	require.NoError(t, os.WriteFile(dead+LockExt, nil, 0o600))
	require.NoError(t, os.WriteFile(dead+"-1"+TmpExt, nil, 0o600))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Path: regexp.MustCompile(`1\.2\.3\.lock$`), Gate: gate})
	swept := make(chan map[string]bool)
	go func() { swept <- tr.Temp.sweep() }()
	<-gate.Entered()
	require.NoError(t, os.WriteFile(dead+"-usage2"+TmpExt, nil, 0o600))
	gate.Open()
	<-swept
	left, err := filepath.Glob(dead + "*")
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestLedgerOfAnySize: a ledger as large as may be is read, a larger one is none.
func TestLedgerOfAnySize(t *testing.T) {
	tr := New(storetest.QuickFS, storetest.PrivateDir(t), Options{Create: true})
	require.NoError(t, tr.Claim(ctx))
	path := filepath.Join(tr.base, ledgerFile)
	for _, size := range []int{0, 1, maxOwnBytes, maxOwnBytes + 1} {
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600))
		content, err := tr.Account(ctx, nil)
		require.NoError(t, err)
		if size > maxOwnBytes {
			size = 0
		}
		require.Len(t, content, size)
	}
	require.NoError(t, tr.Close())
}

// TestLedgerThatIsCutWhileItIsRead: a ledger that ends early cannot be read, and the next
// change makes a new one.
func TestLedgerThatIsCutWhileItIsRead(t *testing.T) {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF} {
		inj := vfs.Inject(storetest.QuickFS)
		tr := New(inj, storetest.PrivateDir(t), Options{Create: true})
		write := func(content []byte, _ string) ([]byte, error) { return append(content, 'x'), nil }
		_, err := tr.Account(ctx, write)
		require.NoError(t, err)
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: end})
		content, err := tr.Account(ctx, nil)
		require.NoError(t, err)
		require.Empty(t, content)
		content, err = tr.Account(ctx, write)
		require.NoError(t, err)
		require.Equal(t, "x", string(content))
		require.NoError(t, tr.Close())
	}
}

// TestRootIsLookedAtOnceASecond: the root is checked neither at each operation nor only once.
func TestRootIsLookedAtOnceASecond(t *testing.T) {
	root := storetest.PrivateDir(t)
	inj := vfs.Inject(storetest.QuickFS)
	tr := New(inj, root, Options{})
	var now time.Duration
	tr.watch.clock = func() time.Duration { return now }
	looks := 0
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpLstat && paths[0] == root {
			looks++
		}
	})
	for _, step := range []struct {
		at    time.Duration
		looks int
	}{{0, 1}, {rootCheckEvery - 1, 1}, {rootCheckEvery, 2}, {2*rootCheckEvery - 1, 2}, {2 * rootCheckEvery, 3}} {
		now = step.at
		for range 3 {
			_, err := tier.Stat(ctx, tr, pagefile.Name{Class: pagefile.ClassPage})
			require.ErrorIs(t, err, tier.ErrNotFound)
		}
		require.Equal(t, step.looks, looks, "at %v", step.at)
	}
}

// TestNamesAreShort: eCryptfs has names of 143 bytes.
func TestNamesAreShort(t *testing.T) {
	b := tier.Branch{Class: pagefile.ClassTail, Tokens: pagefile.MaxTokens}
	require.LessOrEqual(t, len(branchName(b)), 143)
	require.LessOrEqual(t, len(filepath.Base(relPath(tiertest.Tail(1)))), 143)
}

// TestFilesInThePlaceOfBranches: what no store made keeps no branch from being listed, and stays.
func TestFilesInThePlaceOfBranches(t *testing.T) {
	for _, place := range []string{prefixesDir, filepath.Join(prefixesDir, "02")} {
		tr := New(nil, t.TempDir(), Options{Create: true})
		file := filepath.Join(tr.base, tiertest.Fingerprint.String(), place)
		require.NoError(t, tr.Claim(ctx))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		found, err := tr.Branches(ctx, tiertest.Fingerprint, []byte{2})
		require.NoError(t, err)
		require.Empty(t, found)
		require.FileExists(t, file)
		require.NoError(t, tr.Close())
	}
}

// TestFilesThatCannotBeRemovedAreBounded: a share refuses removals, for a while. The files that
// stay behind are at most maxLeft, and none of them counts once it is removed.
func TestFilesThatCannotBeRemovedAreBounded(t *testing.T) {
	ctx := context.Background()
	inj := vfs.Inject(storetest.QuickFS)
	tr := New(inj, storetest.PrivateDir(t), Options{Shared: true})
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.Claim(ctx))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRemove, vfs.OpRename}, Path: regexp.MustCompile(`-\d+\.tmp$`), Err: syscall.EACCES})
	refused := 0
	for n := range maxLeft + 3 {
		up, err := tr.Create(ctx, pagefile.Name{Key: pagefile.Key{byte(n), byte(n >> 8)}})
		if err != nil {
			require.True(t, vfs.IsRefused(err), "%v", err)
			refused++
			continue
		}
		require.NoError(t, up.Write(ctx, []byte("page")))
		_, err = up.Commit(ctx, time.Now())
		require.Error(t, err)
	}
	require.Equal(t, 3, refused)
	require.EqualValues(t, maxLeft*pagefile.PageAlign, tr.Left())
	inj.Reset()
	up, err := tr.Create(ctx, pagefile.Name{Key: pagefile.Key{1}})
	require.NoError(t, err)
	up.Abort()
	require.Zero(t, tr.Left())
}

// sillyName is the name that an NFS client gives to a file that was removed while open.
const sillyName = ".nfs00000000000a1b2c0000001f"

// TestSillyRenames: a client that dies leaves the files behind that it had open when they were removed.
// They are no pages, a count removes them after an hour, and a walk takes them for temporary files.
func TestSillyRenames(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	tr := New(vfs.OS, root, Options{Create: true, Shared: true})
	defer func() { require.NoError(t, tr.Close()) }()
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
	tiertest.Upload(t, tr, tiertest.Tail(2), []byte("tail"), time.Now())
	tmp := filepath.Join(tr.Temp.dir, sillyName)
	swept := []string{tmp}
	for _, name := range []pagefile.Name{tiertest.Page(1), tiertest.Tail(2)} {
		swept = append(swept, filepath.Join(filepath.Dir(tr.Path(name)), sillyName))
	}
	fingerprint := filepath.Join(tr.base, tiertest.Fingerprint.String())
	all := append([]string{
		filepath.Join(tr.base, sillyName), filepath.Join(fingerprint, sillyName), filepath.Join(fingerprint, tailsDir, sillyName),
	}, swept...)
	for _, path := range all {
		require.NoError(t, os.WriteFile(path, []byte("gone"), 0o600))
	}

	found := make(map[string]bool)
	require.NoError(t, tr.Walk(ctx, func(e Entry) error {
		require.NotEqual(t, EntryForeign, e.Kind, e.Path)
		if filepath.Base(e.Path) == sillyName {
			require.Equal(t, EntryTemp, e.Kind)
			found[e.Path] = true
		}
		return nil
	}))
	require.Len(t, found, len(all))

	count := func() {
		_, err := tr.Aside(ctx)
		require.NoError(t, err)
		for _, name := range []pagefile.Name{tiertest.Page(1), tiertest.Tail(2)} {
			infos, err := tr.ListShard(ctx, tier.ShardOf(name))
			require.NoError(t, err)
			require.Len(t, infos, 1)
		}
	}
	count()
	for _, path := range swept {
		require.FileExists(t, path, "its client may live")
		old := time.Now().Add(-2 * OrphanAge)
		require.NoError(t, os.Chtimes(path, old, old))
	}
	count()
	for _, path := range swept {
		require.NoFileExists(t, path)
	}
}

func TestIsSilly(t *testing.T) {
	for base, want := range map[string]bool{
		sillyName: true, ".nfs.0a1b2c3d.0014": true, ".nfs": false, ".nfsroot": false, "nfs00": false, ".nfs-00.tmp": false,
	} {
		require.Equal(t, want, isSilly(base), base)
	}
}
