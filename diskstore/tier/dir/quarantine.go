package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxQuarantined is the number of files that quarantine keeps. Reads move no file to a full
// quarantine; a repair removes the oldest files. A directory, link or FIFO in a page's place
// is moved even to a full quarantine: its size stays the same, and in that place it prevents
// storing the page.
const maxQuarantined = 16

// quarantine moves files to quarantine.
type quarantine struct {
	*moves
	moved atomic.Uint64
}

// unused returns the directory, and there a path that no file has.
func (q *quarantine) unused(was, reason string) (dir, path string) {
	dir = filepath.Join(q.base, quarantineDir)
	return dir, filepath.Join(dir, fmt.Sprintf("%s.%s.%d-%d%s", was, reason, time.Now().UnixNano(), q.moved.Add(1), PageExt))
}

func (q *quarantine) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	moved, err := q.MoveAside(ctx, judged, reason)
	if moved {
		q.SyncAside(q.Path(judged.Name))
	}
	return moved, err
}

// MoveAside does as Quarantine, and syncs nothing: the caller calls SyncAside.
func (q *quarantine) MoveAside(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	dir, to := q.unused(judged.Key.String(), reason)
	err := q.run(ctx, func() error { return q.lookAtJudged(judged) })
	if err == nil {
		var entries []fs.DirEntry
		if entries, err = q.ReadDir(dir); err == nil && len(entries) >= maxQuarantined && judged.Bytes != tier.NotRegular {
			err = tier.ErrQuarantineFull
		}
	}
	if err == nil {
		err = q.opFailed(q.inNewDir(dir, func() error { return q.moveOut(ctx, judged, to) }))
	}
	switch {
	case errors.Is(err, tier.ErrNotFound), errors.Is(err, tier.ErrReplaced):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// SyncAside makes a move of path to quarantine, or back, durable. Without these syncs a power
// cut could return the file to its place, in addition to files stored since in the space that
// the move freed. After a failed sync the next read finds the damage again.
func (q *quarantine) SyncAside(path string) {
	quarantine := filepath.Join(q.base, quarantineDir)
	_ = q.persistDir(quarantine)
	for _, dir := range []string{quarantine, filepath.Dir(path)} {
		_ = q.FS.SyncDir(dir)
	}
}

// TrimQuarantine removes the oldest files beyond the limit. The next call retries failures.
func (q *quarantine) TrimQuarantine(dir string) {
	type file struct {
		path string
		when time.Time
	}
	entries, err := q.ReadDir(dir)
	if err != nil || len(entries) <= maxQuarantined {
		return
	}
	var files []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := q.FS.Lstat(path); err == nil {
			when := fi.ModTime()
			if tier.Beyond(when, time.Now()) {
				when = time.Time{}
			}
			files = append(files, file{path, when})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.when.Compare(b.when), cmp.Compare(a.path, b.path)) })
	for _, f := range files[:max(0, len(files)-maxQuarantined)] {
		_ = q.FS.Remove(f.path)
	}
}

func (q *quarantine) EmptyQuarantine(ctx context.Context) (int64, error) {
	if err := q.Ready(ctx); err != nil {
		return 0, classify(err)
	}
	dir := filepath.Join(q.base, quarantineDir)
	entries, err := q.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	var freed int64
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := q.FS.Lstat(path); err == nil && q.FS.Remove(path) == nil {
			freed += q.FS.PhysicalBytes(fi)
		}
	}
	return freed, q.opFailed(q.FS.SyncDir(dir))
}

// SetAside moves the file or directory at path to quarantine and returns its new path.
func (q *quarantine) SetAside(path, reason string) (string, error) {
	dir, to := q.unused(strings.TrimSuffix(filepath.Base(path), PageExt), reason)
	err := q.inDir(dir, func() error {
		if _, err := q.FS.Lstat(path); err != nil {
			return err
		}
		return q.FS.Rename(path, to)
	})
	return to, classify(err)
}

// DropQuarantined removes the files in quarantine that may be pages of the fingerprints
// picked, or counts them if dryRun is set. DropQuarantined returns their number and physical
// bytes, also with an error.
func (q *quarantine) DropQuarantined(ctx context.Context, picked func(fingerprint pagefile.Key) bool, dryRun bool) (files int, bytes int64, err error) {
	if err := q.Ready(ctx); err != nil {
		return 0, 0, err
	}
	dir := filepath.Join(q.base, quarantineDir)
	entries, err := q.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return files, bytes, err
		}
		path := filepath.Join(dir, e.Name())
		info, err := q.FS.Lstat(path)
		if err == nil && (!info.Mode().IsRegular() || !q.mayBe(ctx, path, picked)) {
			continue
		}
		if err == nil && !dryRun {
			err = q.FS.Remove(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed the file
		}
		if err != nil {
			return files, bytes, err
		}
		files++
		bytes += q.FS.PhysicalBytes(info)
	}
	if dryRun || files == 0 {
		return files, bytes, nil
	}
	return files, bytes, q.FS.SyncDir(dir)
}

// mayBe reports whether a file may be a page of the fingerprints picked.
func (q *quarantine) mayBe(ctx context.Context, path string, picked func(fingerprint pagefile.Key) bool) bool {
	blob, err := OpenFile(q.FS, path, pagefile.Name{})
	if err != nil {
		return true
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	return err != nil || picked(h.Fingerprint)
}
