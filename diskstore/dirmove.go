package diskstore

import (
	"context"
	"errors"
	"io/fs"

	"github.com/kvtier/kvtier/internal/vfs"
)

// notRegular is Info.Bytes of something that has a page's name and is no regular
// file.
const notRegular = -1

// describes reports whether a file is the one that Info was made of. Who replaces a
// page gives it another time. An Info with a name alone stands for whatever is there.
// The number of a file is not asked for: some FUSE filesystems give it another with
// each name.
func (i Info) describes(fi fs.FileInfo) bool {
	switch {
	case i.Bytes == notRegular:
		return !fi.Mode().IsRegular()
	case i.Used.IsZero():
		return true
	}
	return fi.Mode().IsRegular() && fi.Size() == i.Bytes && fi.ModTime().Equal(i.Used)
}

// errReplaced reports a file that was to go and has been replaced.
var errReplaced = errors.New("diskstore: file has been replaced")

// isThere reports whether a name still has the file that was judged.
func (t *dirTier) isThere(judged Info) (bool, error) {
	var fi fs.FileInfo
	err := t.again(func() (err error) {
		fi, err = t.fs.Lstat(t.path(judged.Name))
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && judged.describes(fi), err
}

// moveOut gives the file that was judged another name, and reports whether it did. A
// rename goes by name, and on a mount that hangs it comes late: whatever it has moved
// is looked at again, and a file that is not the one that was judged goes back. Where
// its place has been taken meanwhile it stays away, for the other is the same page.
func (t *dirTier) moveOut(ctx context.Context, judged Info, to string) (bool, error) {
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	path := t.path(judged.Name)
	fi, err := t.fs.Lstat(path)
	if err != nil || !judged.describes(fi) {
		return false, err
	}
	if err := ctx.Err(); err != nil { // it was given up, and the file may be another now
		return false, err
	}
	if err := t.fs.Rename(path, to); err != nil {
		return false, err
	}
	if fi, err = t.lookAnew(to); err != nil || judged.describes(fi) {
		return true, nil
	}
	if _, err := t.fs.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return t.fs.Rename(to, path) != nil, nil
}

// removeJudged removes the file that was judged. An unlink goes by name as a rename
// does, and what it has taken does not come back: in a tier that other machines use,
// and that may hang, the file is moved away first.
func (t *dirTier) removeJudged(ctx context.Context, judged Info) error {
	if !t.shared || judged.Used.IsZero() {
		return t.removeNamed(ctx, judged)
	}
	to, err := t.temp.unused("gone")
	moved := false
	if err == nil {
		moved, err = t.moveOut(ctx, judged, to)
	}
	switch {
	case vfs.IsNoSpace(err): // a full disk has no room for another name, and removing makes some
		return t.removeNamed(ctx, judged)
	case err != nil:
		return err
	case !moved:
		return errReplaced
	}
	t.temp.discard(to, judged.Bytes)
	return nil
}

// removeNamed removes the file of a name if it is the one that was judged.
func (t *dirTier) removeNamed(ctx context.Context, judged Info) error {
	t.renameMu.Lock()
	defer t.renameMu.Unlock()
	path := t.path(judged.Name)
	if !judged.Used.IsZero() {
		fi, err := t.fs.Lstat(path)
		if err != nil {
			return err
		}
		if !judged.describes(fi) {
			return errReplaced
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.fs.Remove(path)
}

// lookAnew describes a file. It is opened for that: an NFS client asks its server
// then, and otherwise tells what it remembers.
func (t *dirTier) lookAnew(path string) (fs.FileInfo, error) {
	f, err := t.fs.Open(path)
	if errors.Is(err, vfs.ErrNotRegular) {
		return t.fs.Lstat(path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}
