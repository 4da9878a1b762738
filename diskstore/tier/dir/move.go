package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

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

// lookAtJudged returns tier.ErrReplaced when a name belongs to a file other than the judged one.
func (t *Tier) lookAtJudged(judged tier.Info) error {
	fi, err := t.FS.Lstat(t.Path(judged.Name))
	if err == nil && !describes(judged, fi) {
		return tier.ErrReplaced
	}
	return err
}

// moveOut renames the judged file, or returns tier.ErrReplaced. A rename acts on a name and may be
// late on a mount that hangs: moveOut checks the moved file again and moves a file other than the
// judged one back. If a new file has taken the name meanwhile, the moved file stays moved: both are
// the same page.
func (t *Tier) moveOut(ctx context.Context, judged tier.Info, to string) error {
	err := t.moveJudged(ctx, judged, to)
	if errors.Is(err, errMovedBack) {
		for _, dir := range []string{filepath.Dir(to), filepath.Dir(t.Path(judged.Name))} {
			_ = t.FS.SyncDir(dir) // without the syncs a power cut could undo the move back
		}
	}
	return err
}

// errMovedBack is the tier.ErrReplaced of a file that was moved and moved back.
var errMovedBack = fmt.Errorf("%w, and was moved back", tier.ErrReplaced)

// moveJudged does as moveOut, and syncs nothing.
func (t *Tier) moveJudged(ctx context.Context, judged tier.Info, to string) error {
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	if err := t.lookAtJudged(judged); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // the operation was given up, and the name may belong to another file now
		return err
	}
	path := t.Path(judged.Name)
	if err := t.FS.Rename(path, to); err != nil {
		return err
	}
	fi, err := t.lookAnew(to)
	if err != nil || describes(judged, fi) {
		return nil
	}
	if _, err := t.FS.Lstat(path); !errors.Is(err, fs.ErrNotExist) || t.FS.Rename(to, path) != nil {
		return nil
	}
	return errMovedBack
}

// goneWord is in the name of a temporary file that was a page and is being removed.
const goneWord = "gone"

// removeJudged removes the judged file. An unlink acts on a name, as a rename does, and cannot
// be undone: in a tier that other machines use, and that may hang, the file is renamed first.
func (t *Tier) removeJudged(ctx context.Context, judged tier.Info) error {
	if !t.shared || judged.Used.IsZero() {
		return t.removeNamed(ctx, judged)
	}
	to, err := t.Temp.unused(goneWord)
	if err == nil {
		err = t.moveOut(ctx, judged, to)
	}
	switch {
	case vfs.IsNoSpace(err): // a full disk has no space for another name; removing frees space
		return t.removeNamed(ctx, judged)
	case err != nil:
		return err
	}
	t.Temp.discard(to, judged.Bytes)
	return nil
}

// removeNamed removes the file of a name if that file is the judged one.
func (t *Tier) removeNamed(ctx context.Context, judged tier.Info) error {
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	if !judged.Used.IsZero() {
		if err := t.lookAtJudged(judged); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.FS.Remove(t.Path(judged.Name))
}

// lookAnew describes a file. lookAnew opens the file first: an NFS client then asks the server
// and does not use cached attributes.
func (t *Tier) lookAnew(path string) (fs.FileInfo, error) {
	f, err := t.FS.Open(path)
	if errors.Is(err, vfs.ErrNotRegular) {
		return t.FS.Lstat(path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}
