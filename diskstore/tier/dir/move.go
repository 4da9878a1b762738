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
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// describes reports whether a file is the one that an Info describes. A process that replaces a page
// gives the new file another time. An Info with a name alone describes any file of that name. File
// numbers are not compared: some FUSE filesystems give a file another number with each name.
func describes(i tier.Info, fi fs.FileInfo) bool {
	switch {
	case i.Bytes == tier.NotRegular:
		return !fi.Mode().IsRegular()
	case i.Used.IsZero():
		return true
	}
	return fi.Mode().IsRegular() && fi.Size() == i.Bytes && fi.ModTime().Equal(i.Used)
}

// moves takes files out of their places. An operation on a name that was given up may be late: the name
// may belong to another file by then.
type moves struct {
	*root
	temp *tempDir
	mu   sync.Mutex // makes "did the file exist" exact within the process

	quarantined atomic.Uint64
}

// lookAtJudged returns tier.ErrReplaced when a name belongs to a file other than the judged one.
func (m *moves) lookAtJudged(judged tier.Info) error {
	fi, err := m.FS.Lstat(m.Path(judged.Name))
	if err == nil && !describes(judged, fi) {
		return tier.ErrReplaced
	}
	return err
}

// moveOut renames the judged file, or returns tier.ErrReplaced. A rename acts on a name and may be late
// on a mount that hangs: moveOut checks the moved file again and moves a file other than the judged one
// back. If a new file has taken the name meanwhile, the moved file stays moved: both are the same page.
func (m *moves) moveOut(ctx context.Context, judged tier.Info, to string) error {
	err := m.moveJudged(ctx, judged, to)
	if errors.Is(err, errMovedBack) {
		for _, dir := range []string{filepath.Dir(to), filepath.Dir(m.Path(judged.Name))} {
			_ = m.FS.SyncDir(dir) // without the syncs a power cut could undo the move back
		}
	}
	return err
}

// errMovedBack is the tier.ErrReplaced of a file that was moved and moved back.
var errMovedBack = fmt.Errorf("%w, and was moved back", tier.ErrReplaced)

// moveJudged does as moveOut, and syncs nothing.
func (m *moves) moveJudged(ctx context.Context, judged tier.Info, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.lookAtJudged(judged); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // the operation was given up, and the name may belong to another file now
		return err
	}
	path := m.Path(judged.Name)
	if err := m.FS.Rename(path, to); err != nil {
		return err
	}
	fi, err := m.lookAnew(to)
	if err != nil || describes(judged, fi) {
		return nil
	}
	if _, err := m.FS.Lstat(path); !errors.Is(err, fs.ErrNotExist) || m.FS.Rename(to, path) != nil {
		return nil
	}
	return errMovedBack
}

// goneWord is in the name of a temporary file that was a page and is being removed.
const goneWord = "gone"

// removeJudged removes the judged file. An unlink acts on a name, as a rename does, and cannot
// be undone: in a tier that other machines use, and that may hang, the file is renamed first.
func (m *moves) removeJudged(ctx context.Context, judged tier.Info) error {
	if !m.shared || judged.Used.IsZero() {
		return m.removeNamed(ctx, judged)
	}
	to, err := m.temp.unused(goneWord)
	if err == nil {
		err = m.moveOut(ctx, judged, to)
	}
	switch {
	case vfs.IsNoSpace(err): // a full disk has no space for another name; removing frees space
		return m.removeNamed(ctx, judged)
	case err != nil:
		return err
	}
	m.temp.left.discard(to, judged.Bytes)
	return nil
}

// removeNamed removes the file of a name if that file is the judged one.
func (m *moves) removeNamed(ctx context.Context, judged tier.Info) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !judged.Used.IsZero() {
		if err := m.lookAtJudged(judged); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := m.FS.Remove(m.Path(judged.Name))
	if err == nil {
		m.dropVectors(judged.Name)
	}
	return err
}

// lookAnew describes a file. lookAnew opens the file first: an NFS client then asks the server
// and does not use cached attributes.
func (r *root) lookAnew(path string) (fs.FileInfo, error) {
	f, err := r.FS.Open(path)
	if errors.Is(err, vfs.ErrNotRegular) {
		return r.FS.Lstat(path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// maxQuarantined is the number of files that quarantine keeps. Reads move no file to a full quarantine;
// a repair removes the oldest files. A directory, link or FIFO in a page's place is moved even to a
// full quarantine: its size stays the same, and in that place it prevents storing the page.
const maxQuarantined = 16

// unused returns the directory, and there a path that no file has.
func (m *moves) unused(was, reason string) (dir, path string) {
	dir = filepath.Join(m.base, quarantineDir)
	return dir, filepath.Join(dir, fmt.Sprintf("%s.%s.%d-%d%s", was, reason, time.Now().UnixNano(), m.quarantined.Add(1), PageExt))
}

func (m *moves) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	moved, err := m.MoveAside(ctx, judged, reason)
	if moved {
		m.SyncAside(m.Path(judged.Name))
	}
	return moved, err
}

// MoveAside does as Quarantine, and syncs nothing: the caller calls SyncAside.
func (m *moves) MoveAside(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	dir, to := m.unused(judged.Key.String(), reason)
	err := m.run(ctx, func() error { return m.lookAtJudged(judged) })
	if err == nil {
		var entries []fs.DirEntry
		if entries, err = m.ReadDir(dir); err == nil && len(entries) >= maxQuarantined && judged.Bytes != tier.NotRegular {
			err = tier.ErrQuarantineFull
		}
	}
	if err == nil {
		err = m.opFailed(m.inNewDir(dir, func() error { return m.moveOut(ctx, judged, to) }))
	}
	switch {
	case errors.Is(err, tier.ErrNotFound), errors.Is(err, tier.ErrReplaced):
		return false, nil
	case err != nil:
		return false, err
	}
	m.dropVectors(judged.Name)
	return true, nil
}

// SyncAside makes a move of path to quarantine, or back, durable. Without these syncs a power
// cut could return the file to its place, in addition to files stored since in the space that
// the move freed. After a failed sync the next read finds the damage again.
func (m *moves) SyncAside(path string) {
	quarantine := filepath.Join(m.base, quarantineDir)
	_ = m.persistDir(quarantine)
	for _, dir := range []string{quarantine, filepath.Dir(path)} {
		_ = m.FS.SyncDir(dir)
	}
}

// TrimQuarantine removes the oldest files beyond the limit. The next call retries failures.
func (m *moves) TrimQuarantine(dir string) {
	type file struct {
		path string
		when time.Time
	}
	entries, err := m.ReadDir(dir)
	if err != nil || len(entries) <= maxQuarantined {
		return
	}
	var files []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := m.FS.Lstat(path); err == nil {
			when := fi.ModTime()
			if tier.Beyond(when, time.Now()) {
				when = time.Time{}
			}
			files = append(files, file{path, when})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.when.Compare(b.when), cmp.Compare(a.path, b.path)) })
	for _, f := range files[:max(0, len(files)-maxQuarantined)] {
		_ = m.FS.Remove(f.path)
	}
}

func (m *moves) EmptyQuarantine(ctx context.Context) (int64, error) {
	if err := m.Ready(ctx); err != nil {
		return 0, classify(err)
	}
	dir := filepath.Join(m.base, quarantineDir)
	entries, err := m.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	var freed int64
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := m.FS.Lstat(path); err == nil && m.FS.Remove(path) == nil {
			freed += m.FS.PhysicalBytes(fi)
		}
	}
	return freed, m.opFailed(m.FS.SyncDir(dir))
}

// SetAside moves the file or directory at path to quarantine and returns its new path.
func (m *moves) SetAside(path, reason string) (string, error) {
	dir, to := m.unused(strings.TrimSuffix(filepath.Base(path), PageExt), reason)
	err := m.inDir(dir, func() error {
		if _, err := m.FS.Lstat(path); err != nil {
			return err
		}
		return m.FS.Rename(path, to)
	})
	return to, classify(err)
}

// DropQuarantined removes the files in quarantine that may be pages of the fingerprints picked, or counts
// them if dryRun is set. DropQuarantined returns their number and physical bytes, also with an error.
func (m *moves) DropQuarantined(ctx context.Context, picked func(fingerprint pagefile.Key) bool, dryRun bool) (files int, bytes int64, err error) {
	if err := m.Ready(ctx); err != nil {
		return 0, 0, err
	}
	dir := filepath.Join(m.base, quarantineDir)
	entries, err := m.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return files, bytes, err
		}
		path := filepath.Join(dir, e.Name())
		info, err := m.FS.Lstat(path)
		if err == nil && (!info.Mode().IsRegular() || !m.mayBe(ctx, path, picked)) {
			continue
		}
		if err == nil && !dryRun {
			err = m.FS.Remove(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed the file
		}
		if err != nil {
			return files, bytes, err
		}
		files++
		bytes += m.FS.PhysicalBytes(info)
	}
	if dryRun || files == 0 {
		return files, bytes, nil
	}
	return files, bytes, m.FS.SyncDir(dir)
}

// mayBe reports whether a file may be a page of the fingerprints picked.
func (m *moves) mayBe(ctx context.Context, path string, picked func(fingerprint pagefile.Key) bool) bool {
	blob, err := OpenFile(m.FS, path, pagefile.Name{})
	if err != nil {
		return true
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	return err != nil || picked(h.Fingerprint)
}
