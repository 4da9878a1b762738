package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// dirUpload is an Upload to a Tier. The file is written in the temporary directory, on the
// filesystem of its final name.
type dirUpload struct {
	in      *moves
	name    pagefile.Name
	file    vfs.File // nil when closed
	tmp     string
	written int64
	sealed  *tier.Info // of the temporary file, after Seal
	ended   bool       // by Commit or Abort
}

func (t *Tier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	file, tmp, err := t.Temp.create("")
	if err != nil {
		return nil, t.opFailed(err)
	}
	return &dirUpload{in: t.moves, name: name, file: file, tmp: tmp}, nil
}

func (u *dirUpload) Write(ctx context.Context, p []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, err := u.file.Write(p)
	u.written += int64(n)
	return u.in.opFailed(err)
}

func (u *dirUpload) Written() int64 { return u.written }

func (u *dirUpload) Seal(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := u.seal()
	if err != nil {
		u.Abort()
		return u.in.opFailed(err)
	}
	u.sealed = &info
	return nil
}

func (u *dirUpload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	if u.sealed == nil {
		if err := u.Seal(ctx); err != nil {
			return tier.Committed{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return tier.Committed{}, err
	}
	info := *u.sealed
	info.Used, u.ended = used, true
	return u.publish(ctx, info)
}

// seal makes the temporary file's content durable and closes the file. The file keeps the
// times of its writing: a file with an old time would count as a dead process's.
func (u *dirUpload) seal() (tier.Info, error) {
	if err := u.file.Sync(); err != nil {
		return tier.Info{}, err
	}
	fi, err := u.file.Stat()
	if err != nil {
		return tier.Info{}, err
	}
	if fi.Size() != u.written {
		return tier.Info{}, fmt.Errorf("write %s: file is %d bytes after writing %d", u.tmp, fi.Size(), u.written)
	}
	file := u.file
	u.file = nil
	// An interrupted close has closed the file, and the content was synced before.
	if err := file.Close(); err != nil && !errors.Is(err, syscall.EINTR) {
		return tier.Info{}, err
	}
	// After the close: XFS frees blocks allocated beyond the end of the file at the close.
	if fi, err = u.in.FS.Lstat(u.tmp); err != nil {
		return tier.Info{}, err
	}
	// If the file's time cannot be set, the page is not stored: the first page of a
	// conversation would be evicted first, and no other page of the conversation would be
	// found. Setting the present time shows whether times can be set.
	if err := u.in.FS.Chtimes(u.tmp, fi.ModTime(), fi.ModTime()); err != nil {
		return tier.Info{}, err
	}
	return tier.Info{Name: u.name, Bytes: fi.Size(), Physical: u.in.FS.PhysicalBytes(fi)}, nil
}

// publish renames the sealed file. A directory, link or FIFO in the page's place is moved to quarantine.
func (u *dirUpload) publish(ctx context.Context, info tier.Info) (tier.Committed, error) {
	t, path := u.in, u.in.Path(u.name)
	dir := filepath.Dir(path)
	done := tier.Committed{Info: info}
	rename := func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		fi, err := t.FS.Lstat(path)
		if done.Replaced = err == nil && fi.Mode().IsRegular(); done.Replaced {
			done.Freed = t.FS.PhysicalBytes(fi)
		}
		if err := t.FS.Rename(u.tmp, path); err != nil {
			return err
		}
		// seal has tried to set a time. A file that keeps the time of its writing is evicted
		// later than others.
		_ = t.FS.Chtimes(path, info.Used, info.Used)
		return nil
	}
	err := t.inNewDir(dir, rename)
	if err != nil {
		if moved, _ := t.Quarantine(ctx, tier.Info{Name: u.name, Bytes: tier.NotRegular}, "notregular"); moved {
			err = t.inNewDir(dir, rename)
		}
	}
	if err != nil {
		return u.unpublished(done), u.in.opFailed(err)
	}
	return done, nil
}

// unpublished returns the Committed of a failed rename, if the rename may have taken effect: a
// network can lose the answer to an operation that succeeded.
func (u *dirUpload) unpublished(done tier.Committed) tier.Committed {
	_, err := u.in.FS.Lstat(u.tmp)
	if err == nil {
		u.remove()
		return tier.Committed{}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		u.remove()
	}
	return done
}

func (u *dirUpload) remove() { u.in.temp.left.discard(u.tmp, u.written) }

func (u *dirUpload) Abort() {
	if u.ended {
		return
	}
	u.ended = true
	if u.file != nil {
		_ = u.file.Close()
	}
	u.remove()
}

func (t *Tier) Persist(ctx context.Context, name pagefile.Name) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	dir := filepath.Dir(t.Path(name))
	return t.opFailed(t.inDir(dir, func() error { return t.FS.SyncDir(dir) }))
}
