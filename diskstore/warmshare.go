package diskstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/vfs"
)

// A server's runners divide its budget of memory evenly. Each has a lock file in
// the local root's temporary directory anyhow; with a budget its name begins with
// the server's, so that counting them tells how many there are. A runner that
// dies lets go of its lock, and whoever counts next removes the file.

// serverPrefix is what the lock files of a server's runners begin with. Names of
// temporary files are cut at a hyphen, so there is none in it.
func serverPrefix(server string) string {
	sum := sha256.Sum256([]byte(server))
	return "warm." + hex.EncodeToString(sum[:8]) + "."
}

// peers counts the living processes with this one's prefix, itself included.
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

// shareWarm takes this runner's part of its server's budget. While it cannot be
// told how many runners there are nothing is kept: memory that was not granted
// may be somebody else's.
func (s *Store) shareWarm() {
	n, err := s.localTemp.peers()
	s.warmHealth.note("share memory between runners", err)
	if err != nil {
		s.warm.setLimit(0)
		return
	}
	s.warm.setLimit(s.opt.RAM.BudgetBytes / int64(n))
}
