package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// describes reports whether a file is the one that an Info describes. A process that replaces
// a page gives the new file another time. An Info with a name alone describes any file of that
// name. File numbers are not compared: some FUSE filesystems give a file another number with
// each name.
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
}

// lookAtJudged returns tier.ErrReplaced when a name belongs to a file other than the judged one.
func (m *moves) lookAtJudged(judged tier.Info) error {
	fi, err := m.FS.Lstat(m.Path(judged.Name))
	if err == nil && !describes(judged, fi) {
		return tier.ErrReplaced
	}
	return err
}

// moveOut renames the judged file, or returns tier.ErrReplaced. A rename acts on a name and may be
// late on a mount that hangs: moveOut checks the moved file again and moves a file other than the
// judged one back. If a new file has taken the name meanwhile, the moved file stays moved: both are
// the same page.
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
	return m.FS.Remove(m.Path(judged.Name))
}

// lookAnew describes a file. lookAnew opens the file first: an NFS client then asks the server
// and does not use cached attributes.
func (m *moves) lookAnew(path string) (fs.FileInfo, error) {
	f, err := m.FS.Open(path)
	if errors.Is(err, vfs.ErrNotRegular) {
		return m.FS.Lstat(path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}
