//go:build unix

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// folderPattern names the daemons' folders, each with the socket of an engine.
	folderPattern = "kvtier-llama-*"
	socketName    = "llama.sock"

	// folderMax is the longest name of a folder, in bytes: systems bound the name of a socket
	// to about 100.
	folderMax = 85

	// folderAge is the age from which a folder without a daemon is removed: a younger one may
	// belong to a daemon that has not locked it yet.
	folderAge = time.Minute
)

// folder is a private directory with a lock that is held until the daemon ends, however it ends.
type folder struct {
	path string
	lock *os.File // the directory
}

// newFolder makes a folder.
func newFolder() (*folder, error) {
	parent := os.TempDir()
	if len(filepath.Join(parent, folderPattern))+10 > folderMax {
		parent = "/tmp"
	}
	path, err := os.MkdirTemp(parent, folderPattern)
	if err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), os.Remove(path))
	}
	return &folder{path, lock}, nil
}

func (f *folder) socket() string { return filepath.Join(f.path, socketName) }

// remove removes the folder.
func (f *folder) remove() error {
	defer f.lock.Close()
	return os.RemoveAll(f.path)
}

// sweep removes the folders beside this one whose daemons were killed. Other users can make
// any file there.
func (f *folder) sweep(log *slog.Logger, now time.Time) {
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(f.path), folderPattern))
	if err != nil {
		return // the pattern is a constant
	}
	for _, path := range paths {
		if path == f.path {
			continue
		}
		if err := removeDead(path, now); err != nil {
			log.Debug("a folder of a daemon stays", "path", path, "reason", err)
		}
	}
}

// removeDead removes a folder whose daemon has ended. It follows no link, and touches only
// folders of this user that nobody else can change.
func removeDead(path string, now time.Time) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case int(st.Uid) != os.Geteuid() || st.Mode&0o777 != 0o700:
		return errors.New("it is not a private folder of this user")
	case now.Sub(info.ModTime()) < folderAge:
		return errors.New("it is young")
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("its daemon runs: %w", err)
	}
	if c, err := net.Dial("unix", filepath.Join(path, socketName)); err == nil {
		c.Close()
		return errors.New("its engine runs")
	}
	if err := unix.Unlinkat(fd, socketName, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return unix.Unlinkat(unix.AT_FDCWD, path, unix.AT_REMOVEDIR)
}
