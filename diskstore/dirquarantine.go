package diskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxQuarantined is how many files quarantine keeps. Who reads adds none to so
// many; a repair removes the oldest. What is no regular file is moved there all the
// same: it took as much room in a page's place, and kept that page from being stored.
const maxQuarantined = 16

func (t *dirTier) Quarantine(ctx context.Context, judged Info, reason string) (bool, error) {
	if err := t.ready(ctx); err != nil {
		return false, classify(err)
	}
	dir := filepath.Join(t.base, quarantineDir)
	base := fmt.Sprintf("%s.%s.%d-%d%s", judged.Key, reason, time.Now().UnixNano(), t.moved.Add(1), pageExt)
	err := t.again(func() error { return t.lookAtJudged(judged) })
	if err == nil {
		var entries []fs.DirEntry
		if entries, err = t.readDir(dir); err == nil && len(entries) >= maxQuarantined && judged.Bytes != notRegular {
			err = errQuarantineFull
		}
	}
	if err == nil {
		err = t.opFailed(t.inDir(dir, func() error { return t.moveOut(ctx, judged, filepath.Join(dir, base)) }))
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, errReplaced):
		return false, nil
	case err != nil:
		return false, err
	}
	t.syncAside(t.path(judged.Name))
	return true, nil
}

// syncAside makes durable that what was at path is in quarantine, or back: in a
// power cut it could return to its place beside what has taken its room since.
// Where a sync fails it is found out once more.
func (t *dirTier) syncAside(path string) {
	for _, dir := range []string{filepath.Join(t.base, quarantineDir), filepath.Dir(path)} {
		_ = t.fs.SyncDir(dir)
	}
}

// trimQuarantine removes the oldest files over the limit. Failures are left for
// the next time.
func (t *dirTier) trimQuarantine(dir string) {
	type file struct {
		path string
		when time.Time
	}
	entries, err := t.readDir(dir)
	if err != nil || len(entries) <= maxQuarantined {
		return
	}
	var files []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := t.fs.Lstat(path); err == nil {
			when := fi.ModTime()
			if beyond(when, time.Now()) {
				when = time.Time{}
			}
			files = append(files, file{path, when})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.when.Compare(b.when), cmp.Compare(a.path, b.path)) })
	for _, f := range files[:max(0, len(files)-maxQuarantined)] {
		_ = t.fs.Remove(f.path)
	}
}

func (t *dirTier) EmptyQuarantine(ctx context.Context) (int64, error) {
	if err := t.ready(ctx); err != nil {
		return 0, classify(err)
	}
	dir := filepath.Join(t.base, quarantineDir)
	entries, err := t.readDir(dir)
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	var freed int64
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := t.fs.Lstat(path); err == nil && t.fs.Remove(path) == nil {
			freed += t.fs.PhysicalBytes(fi)
		}
	}
	return freed, t.opFailed(t.fs.SyncDir(dir))
}

// setAside moves whatever is at path to quarantine and returns where it is.
func (t *dirTier) setAside(path, reason string) (string, error) {
	dir := filepath.Join(t.base, quarantineDir)
	was := strings.TrimSuffix(filepath.Base(path), pageExt)
	to := filepath.Join(dir, fmt.Sprintf("%s.%s.%d-%d%s", was, reason, time.Now().UnixNano(), t.moved.Add(1), pageExt))
	err := t.inDir(dir, func() error {
		if _, err := t.fs.Lstat(path); err != nil {
			return err
		}
		return t.fs.Rename(path, to)
	})
	return to, classify(err)
}

// dropQuarantined removes the files in quarantine that may be pages of the fingerprints
// picked, or counts them where dryRun is set. It returns how many, and their physical
// bytes, also with an error.
func (t *dirTier) dropQuarantined(ctx context.Context, picked func(fingerprint Key) bool, dryRun bool) (files int, bytes int64, err error) {
	if err := t.ready(ctx); err != nil {
		return 0, 0, err
	}
	dir := filepath.Join(t.base, quarantineDir)
	w := &walker{ctx: ctx, t: t, visit: func(e entry) error { return e.err }}
	err = w.each(dir, func(_, path string, info fs.FileInfo) error {
		if !info.Mode().IsRegular() || !t.mayBe(ctx, path, picked) {
			return nil
		}
		if !dryRun {
			err := t.fs.Remove(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // by somebody else
			}
			if err != nil {
				return err
			}
		}
		files++
		bytes += t.fs.PhysicalBytes(info)
		return nil
	})
	if err != nil || dryRun || files == 0 {
		return files, bytes, err
	}
	return files, bytes, t.fs.SyncDir(dir)
}

// mayBe reports whether a file may be a page of the fingerprints picked.
func (t *dirTier) mayBe(ctx context.Context, path string, picked func(fingerprint Key) bool) bool {
	blob, err := openFileBlob(t.fs, path, Name{})
	if err != nil {
		return true
	}
	defer blob.Close()
	h, err := readHeader(ctx, blob)
	return err != nil || picked(h.Fingerprint)
}
