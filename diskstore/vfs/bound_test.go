package vfs

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBoundGivesUpOnce makes each operation hang forever. The operation fails within its
// limit and names the directory that does not answer; later operations fail without being
// tried; a file that was opened too late is closed.
func TestBoundGivesUpOnce(t *testing.T) {
	dir := filepath.Join(string(filepath.Separator), "dir")
	path := filepath.Join(dir, "file")
	buf := []byte("ours")
	for op, run := range operations {
		t.Run(string(op), func(t *testing.T) {
			m := NewMem(1 << 20)
			require.NoError(t, m.Mkdir(dir))
			inj, gate := Inject(m), NewGate()
			b := Bound(inj, dir, 5*time.Millisecond)
			b.limit = time.Minute // until the filesystem hangs
			file, err := b.Create(path)
			require.NoError(t, err)
			lock, err := b.Lock(filepath.Join(dir, "held"))
			require.NoError(t, err)
			_, err = file.Write([]byte("their content"))
			require.NoError(t, err)

			before := runtime.NumGoroutine()
			inj.Add(Rule{Ops: []Op{op}, Gate: gate})
			b.limit = 5 * time.Millisecond
			err = run(operands{b, file, path, buf})
			require.ErrorIs(t, err, ErrHung)
			require.Regexp(t, "^"+dir+" does not answer: "+string(op)+" /dir.* took longer than 5ms$", err.Error())
			asked := inj.Count()
			again := run(operands{b, file, path, buf})
			require.ErrorIs(t, again, ErrHung)
			_, again = b.Lstat(dir)
			require.ErrorIs(t, again, ErrHung)
			if op != OpClose { // close is tried in the background
				require.Equal(t, asked, inj.Count(), "nothing is tried again")
			}
			require.Equal(t, "ours", string(buf))

			gate.Open()
			_ = lock.Close()
			require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 10*time.Second, time.Millisecond,
				"hung operations have ended; one goroutine asks")
			require.Equal(t, "ours", string(buf), "late results are dropped")
			require.Eventually(t, func() bool {
				l, err := m.Lock(filepath.Join(dir, "held"))
				return err == nil && l.Close() == nil
			}, 10*time.Second, time.Millisecond, "a lock is released on a filesystem that hung")
		})
	}
}
