package dir

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func (t *Tier) Now(ctx context.Context) (time.Time, error) {
	if err := t.Ready(ctx); err != nil {
		return time.Time{}, classify(err)
	}
	now, err := t.Temp.clock()
	if vfs.IsNoSpace(err) {
		now = t.lastChange()
	}
	return now, t.opFailed(err)
}

// lastChange is the latest time that the filesystem has set in the root by itself, on files
// other than pages. The filesystem's clock is at least that late.
func (t *Tier) lastChange() time.Time {
	paths := []string{t.base, t.Temp.dir, filepath.Join(t.base, ledgerFile)}
	entries, _ := t.FS.ReadDir(t.Temp.dir) // after an error the result is an earlier time
	for _, e := range entries {
		paths = append(paths, filepath.Join(t.Temp.dir, e.Name()))
	}
	var last time.Time
	for _, path := range paths {
		if fi, err := t.FS.Lstat(path); err == nil {
			last = tier.Later(last, fi.ModTime())
		}
	}
	return last
}

// clock returns the time of the filesystem's clock. Without an id, clock makes a temporary
// file under a random name: such a file is not a claim that another machine has to respect.
func (d *tempDir) clock() (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return time.Time{}, tier.ErrClosed
	}
	if d.reach.locking == nil {
		if err := d.in.ensureDir(d.dir); err != nil {
			return time.Time{}, err
		}
	}
	if err := d.reach.learnLocks(); err != nil {
		return time.Time{}, err
	}
	if now, ok := d.nowLocked(); ok {
		return now, nil
	}
	var random [8]byte
	rand.Read(random[:])
	return d.in.timeNow(filepath.Join(d.dir, d.prefix+d.reach.locking.Host+"."+hex.EncodeToString(random[:])+"-"+clockWord+TmpExt))
}

// clockWord is in the name of a temporary file that is made to read the filesystem's clock.
const clockWord = "clock"

// timeNow makes and removes a file and returns the file's modification time.
func (r *root) timeNow(path string) (time.Time, error) {
	f, err := r.FS.Create(path)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = r.FS.Remove(path) }() // a later sweep removes the file if this fails
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return time.Time{}, fmt.Errorf("look at a file made to tell the time by: %w", err)
	}
	return fi.ModTime(), nil
}

// nowLocked returns the time of the filesystem's clock, which may be another machine's. The result is
// false without an id, because no file can be made then, and when making the file fails. d.mu is held.
func (d *tempDir) nowLocked() (time.Time, bool) {
	if !d.reach.foreign() {
		return time.Now(), true
	}
	if d.id == "" {
		return time.Time{}, false
	}
	now, err := d.in.timeNow(d.path(d.id, clockWord))
	return now, err == nil
}
