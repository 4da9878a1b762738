package dir

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

// describes reports whether a file is the one that Info was made of. Who replaces a
// page gives it another time. An Info with a name alone stands for whatever is there.
// The number of a file is not asked for: some FUSE filesystems give it another with
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

// lookAtJudged returns ErrReplaced when a name has another file than the one that was
// judged.
func (t *Tier) lookAtJudged(judged tier.Info) error {
	fi, err := t.FS.Lstat(t.Path(judged.Name))
	if err == nil && !describes(judged, fi) {
		return tier.ErrReplaced
	}
	return err
}

// moveOut gives the file that was judged another name, or returns ErrReplaced. A
// rename goes by name, and on a mount that hangs it comes late: whatever it has moved
// is looked at again, and a file that is not the one that was judged goes back. Where
// its place has been taken meanwhile it stays away, for the other is the same page.
func (t *Tier) moveOut(ctx context.Context, judged tier.Info, to string) error {
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	if err := t.lookAtJudged(judged); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // it was given up, and the file may be another now
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
	for _, dir := range []string{filepath.Dir(to), filepath.Dir(path)} {
		_ = t.FS.SyncDir(dir) // or a power cut might move it once more
	}
	return tier.ErrReplaced
}

// goneWord is in the name of a temporary file that was a page and is being removed.
const goneWord = "gone"

// removeJudged removes the file that was judged. An unlink goes by name as a rename
// does, and what it has taken does not come back: in a tier that other machines use,
// and that may hang, the file is moved away first.
func (t *Tier) removeJudged(ctx context.Context, judged tier.Info) error {
	if !t.shared || judged.Used.IsZero() {
		return t.removeNamed(ctx, judged)
	}
	to, err := t.Temp.unused(goneWord)
	if err == nil {
		err = t.moveOut(ctx, judged, to)
	}
	switch {
	case vfs.IsNoSpace(err): // a full disk has no room for another name, and removing makes some
		return t.removeNamed(ctx, judged)
	case err != nil:
		return err
	}
	t.Temp.discard(to, judged.Bytes)
	return nil
}

// removeNamed removes the file of a name if it is the one that was judged.
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

// lookAnew describes a file. It is opened for that: an NFS client asks its server
// then, and otherwise tells what it remembers.
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
