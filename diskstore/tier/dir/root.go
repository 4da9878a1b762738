package dir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

// CheckRoot returns nil when path is a directory in which this process may keep
// prompts: not a symbolic link, owned by this user, and not writable by its
// group or by others. Otherwise it returns ErrRootSymlink, ErrRootNotDir,
// ErrRootOwner or ErrRootMode; fs.ErrNotExist when there is nothing; or an
// error of the filesystem. Where files have no owners (Windows) only the first
// two are checked.
func CheckRoot(fsys vfs.FS, path string) error {
	_, err := checkRoot(fsys, path)
	return err
}

// checkRoot is CheckRoot, and describes a root that is safe.
func checkRoot(fsys vfs.FS, path string) (fs.FileInfo, error) {
	// A trailing slash would make the system look behind a link.
	path = filepath.Clean(path)
	info, err := fsys.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("check root: %w", err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("check root %s: name the directory it points to instead: %w", path, tier.ErrRootSymlink)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("check root %s: choose another path: %w", path, tier.ErrRootNotDir)
	}
	uid, ok := fsys.Owner(info)
	if !ok {
		return info, nil
	}
	if uid != os.Geteuid() {
		return nil, fmt.Errorf("check root %s: owner is user %d, this is user %d; choose a directory of your own: %w",
			path, uid, os.Geteuid(), tier.ErrRootOwner)
	}
	if perm := info.Mode().Perm(); perm&0o022 != 0 {
		return nil, fmt.Errorf("check root %s: mode is %04o; run chmod 700 %s: %w", path, perm, path, tier.ErrRootMode)
	}
	return info, nil
}
