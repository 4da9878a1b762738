package dir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// CheckRoot returns nil when path is a directory in which this process may keep prompts: not a
// symbolic link, owned by this user, and not writable by its group or by others. Otherwise
// CheckRoot returns tier.ErrRootSymlink, tier.ErrRootNotDir, tier.ErrRootOwner or tier.ErrRootMode;
// fs.ErrNotExist for a missing directory; or an error of the filesystem. On Windows, where files
// have no such owners, only the first two are checked.
func CheckRoot(fsys vfs.FS, path string) error {
	_, err := checkRoot(fsys, path)
	return err
}

// checkRoot does as CheckRoot and describes a safe root.
func checkRoot(fsys vfs.FS, path string) (fs.FileInfo, error) {
	// With a trailing slash the system would follow a link.
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
