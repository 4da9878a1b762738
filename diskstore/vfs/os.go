package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// OS is the operating system's filesystem.
var OS FS = osFS{}

const (
	fileMode = 0o600
	dirMode  = 0o700
)

func (osFS) SameFile(a, b fs.FileInfo) bool            { return os.SameFile(a, b) }
func (osFS) PhysicalBytes(info fs.FileInfo) int64      { return physicalBytes(info) }
func (osFS) Owner(info fs.FileInfo) (uid int, ok bool) { return owner(info) }
func (osFS) IsRAM(name string) (bool, error)           { return isRAM(Through(name)) }
func (osFS) Locking(name string) (Locking, error)      { return lockingAt(name) }

func (osFS) Lstat(name string) (fs.FileInfo, error) {
	at := Through(name)
	info, err := os.Lstat(at)
	var e *fs.PathError
	if at != name && errors.As(err, &e) {
		e.Path = name
	}
	return info, err
}

func (osFS) Space(name string) (Space, error) {
	s, err := space(Through(name))
	if err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return s, nil
}

// created gives a new file its mode: a umask such as 0277 would leave a file that its own owner
// cannot open again.
func (f osFS) created(file *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	if err := file.Chmod(fileMode); err != nil {
		file.Close()
		f.Remove(file.Name())
		return nil, err
	}
	return file, nil
}

// regular returns an open regular file, and ErrNotRegular for anything else.
func regular(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// uncached drops the cached bytes of a file, and closes the file.
func uncached(f *os.File, err error) error {
	if err != nil {
		return err
	}
	defer f.Close()
	return uncache(f)
}

// locked locks an open file and returns the file as the lock.
func locked(f *os.File, err error) (io.Closer, error) {
	if err != nil {
		return nil, err
	}
	if err := lockFile(f, exclusive); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// As in Create: the next process must be able to open the file.
	if info, err := f.Stat(); err == nil && info.Mode().Perm()&fileMode != fileMode {
		if err := f.Chmod(fileMode); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// Held reports whether somebody holds the lock that Lock of the operating system's FS takes on a
// file. Any number of callers may ask at once. While one asks, a Lock of the file may fail with
// ErrLocked, so try again.
func Held(name string) (bool, error) {
	f, err := OS.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = lockFile(f.(*os.File), shared) // excludes exclusive locks alone
	if errors.Is(err, ErrLocked) {
		return true, nil
	}
	if err != nil {
		err = fmt.Errorf("ask for the lock on %s: %w", name, err)
	}
	return false, err
}
