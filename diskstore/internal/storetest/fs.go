package storetest

import (
	"regexp"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// QuickFS is the operating system's filesystem without waiting for the device, for tests of anything else.
var QuickFS vfs.FS = unsynced{vfs.OS}

type unsynced struct{ vfs.FS }

func (unsynced) SyncDir(string) error { return nil }

func (u unsynced) Create(name string) (vfs.File, error) {
	f, err := u.FS.Create(name)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error { return nil }

// Hang makes operations below a root hang until the test ends, when they fail: an operation
// that succeeded then would change files that are being removed.
func Hang(t testing.TB, inj *vfs.Injector, root string, ops ...vfs.Op) {
	gate := vfs.NewGate()
	t.Cleanup(gate.Open)
	inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(root)), Ops: ops, Gate: gate, Err: syscall.EIO})
}

// RequireSilent requires the error of a root that does not answer, with the root's name.
func RequireSilent(t testing.TB, err error, root string) {
	t.Helper()
	require.True(t, tier.NoAnswer(err), "%v", err)
	require.ErrorContains(t, err, root+" does not answer: ")
}

// EachHang runs test once for each tier and each kind of operation that may hang there.
func EachHang(t *testing.T, test func(t *testing.T, tierName string, op vfs.Op)) {
	for _, op := range []vfs.Op{
		vfs.OpOpen, vfs.OpReadDir, vfs.OpRemove, vfs.OpLstat, vfs.OpSyncDir, vfs.OpLock, vfs.OpSpace, vfs.OpRead,
		vfs.OpStat, vfs.OpClose, vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpRename,
	} {
		for _, name := range []string{tier.Local, tier.Remote} {
			t.Run(name+" "+string(op), func(t *testing.T) { test(t, name, op) })
		}
	}
}

// RequireEnded requires that err, unless nil, is the error of a root that does not answer.
func RequireEnded(t testing.TB, err error, root string) {
	t.Helper()
	if err != nil {
		RequireSilent(t, err, root)
	}
}

// Slept returns a time taken just before this machine slept for d: the monotonic clock has not
// counted the sleep. The upper bits of a Time's first word are its seconds.
func Slept(d time.Duration) time.Time {
	at := time.Now()
	*(*uint64)(unsafe.Pointer(&at)) -= uint64(d/time.Second) << 30
	return at
}
