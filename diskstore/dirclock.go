package diskstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"time"
)

func (t *dirTier) Now(ctx context.Context) (time.Time, error) {
	if err := t.ready(ctx); err != nil {
		return time.Time{}, classify(err)
	}
	now, err := t.temp.clock()
	return now, t.opFailed(err)
}

// clock is what the filesystem's clock shows. Without a file of this process a
// temporary one tells; it needs no claim, which another machine would have to mind.
func (d *tempDir) clock() (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return time.Time{}, ErrClosed
	}
	if d.locking == nil {
		if err := d.t.ensureDir(d.dir); err != nil {
			return time.Time{}, err
		}
	}
	if err := d.learnLocksLocked(); err != nil {
		return time.Time{}, err
	}
	if now, ok := d.nowLocked(); ok {
		return now, nil
	}
	var random [8]byte
	rand.Read(random[:])
	path := filepath.Join(d.dir, d.prefix+d.locking.Host+"."+hex.EncodeToString(random[:])+"-clock"+tmpExt)
	f, err := d.t.fs.Create(path)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = d.t.fs.Remove(path) }() // else swept as an orphan
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return time.Time{}, fmt.Errorf("look at a file made to tell the time by: %w", err)
	}
	return fi.ModTime(), nil
}
