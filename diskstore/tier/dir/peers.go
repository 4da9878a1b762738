package dir

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Peers counts the living processes with this one's prefix, itself included.
func (t *Tier) Peers() (int, error) { return t.Temp.peers() }

func (d *tempDir) peers() (int, error) {
	own, err := d.claim()
	if err != nil {
		return 0, err
	}
	if !d.locked() {
		return 0, fmt.Errorf("count runners in %s: the filesystem has no locks: %w", d.dir, errors.ErrUnsupported)
	}
	entries, err := d.in.FS.ReadDir(d.dir)
	if err != nil {
		return 0, err
	}
	n := 1
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), LockExt)
		if !ok || id == own || !strings.HasPrefix(id, d.prefix) {
			continue
		}
		path := filepath.Join(d.dir, e.Name())
		lock, err := d.in.FS.LockThere(path)
		switch {
		case errors.Is(classify(err), tier.ErrNotFound): // the process has ended since the directory was listed
		case errors.Is(err, vfs.ErrLocked):
			n++
		case err == nil:
			if d.trusted(id) { // a lock that is not trusted may belong to another machine, with its own memory
				_ = d.in.FS.Remove(path)
			}
			lock.Close()
		default:
			return 0, err
		}
	}
	return n, nil
}
