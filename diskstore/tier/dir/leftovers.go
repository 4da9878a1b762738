package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// leftovers are temporary files that could not be removed.
type leftovers struct {
	in    *root
	bytes atomic.Int64 // of all of them, on the disk, at most

	mu    sync.Mutex
	files map[string]int64 // their size on the disk, at most
}

// maxLeft is the number of files that could not be removed with which a process makes no
// further one. A few more may be left by files that are being made.
const maxLeft = 256

// discard removes a file of the given size in bytes. A file that cannot be removed is counted,
// and removed again before the next file is made.
func (l *leftovers) discard(path string, bytes int64) {
	err := l.in.FS.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files == nil {
		l.files = make(map[string]int64)
	}
	l.bytes.Add(pagefile.AlignUp(bytes) - l.files[path])
	l.files[path] = pagefile.AlignUp(bytes)
}

// retry removes files that discard could not remove, until the first failure. retry
// returns the failure while there are maxLeft files.
func (l *leftovers) retry() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for path, bytes := range l.files {
		if err := l.in.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if len(l.files) < maxLeft {
				return nil // the other files would probably fail, too
			}
			return fmt.Errorf("%d temporary files cannot be removed: %w", len(l.files), err)
		}
		delete(l.files, path)
		l.bytes.Add(-bytes)
	}
	return nil
}
