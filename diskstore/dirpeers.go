package diskstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/vfs"
)

// peers counts the living processes with this one's prefix, itself included.
func (t *dirTier) peers() (int, error) { return t.temp.peers() }

func (d *tempDir) peers() (int, error) {
	own, err := d.claim()
	if err != nil {
		return 0, err
	}
	if !d.locked() {
		return 0, fmt.Errorf("count runners in %s: the filesystem has no locks: %w", d.dir, errors.ErrUnsupported)
	}
	entries, err := d.t.fs.ReadDir(d.dir)
	if err != nil {
		return 0, err
	}
	n := 1
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), lockExt)
		if !ok || id == own || !strings.HasPrefix(id, d.prefix) {
			continue
		}
		path := filepath.Join(d.dir, e.Name())
		lock, err := d.t.fs.Lock(path)
		switch {
		case errors.Is(err, vfs.ErrLocked):
			n++
		case err == nil:
			if d.trusted(id) { // or it may be one of another machine, with its own memory
				_ = d.t.fs.Remove(path)
			}
			lock.Close()
		default:
			return 0, err
		}
	}
	return n, nil
}
