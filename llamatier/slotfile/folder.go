package slotfile

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	// SocketName is the name of llama-server's socket in a folder.
	SocketName = "llama.sock"

	folderPrefix = "kvtier-llama-"
	filePrefix   = "slot-"
	mountName    = "mount" // of a directory that exists for a moment
)

// Folder is a private directory with a lock that is held until the process ends, however it ends.
type Folder struct {
	Path string

	mu   sync.Mutex
	lock *os.File // the directory
}

// foldersMax bounds the attempts to make a folder: another process may remove each before it is locked.
const foldersMax = 100

// errSwept reports a folder that another process took for one that was left behind.
var errSwept = errors.New("another process has removed it")

// NewFolder makes a folder in a directory.
func NewFolder(parent string) (f *Folder, err error) {
	for range foldersMax {
		if f, err = makeFolder(parent); !errors.Is(err, errSwept) {
			break
		}
	}
	return f, err
}

// makeFolder makes a folder, and returns errSwept if somebody has removed it before it was locked.
func makeFolder(parent string) (_ *Folder, err error) {
	f := new(Folder)
	if parent, err = filepath.Abs(parent); err == nil {
		f.Path, err = os.MkdirTemp(parent, folderPrefix+"*")
	}
	if err == nil {
		f.lock, err = lockFolder(f.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("make a folder for llama-server: %w", err)
	}
	return f, nil
}

// lockFolder locks a new folder, and returns errSwept if somebody has removed it. The folder is
// removed after other errors.
func lockFolder(path string) (*os.File, error) {
	lock, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errSwept
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	locked, err := tryLock(lock)
	if err != nil {
		lock.Close()
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), os.Remove(path))
	}
	if !locked || !isAt(lock, path) {
		lock.Close()
		return nil, errSwept
	}
	return lock, nil
}

// keep makes the folder again if somebody has removed it.
func (f *Folder) keep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isAt(f.lock, f.Path) {
		return nil
	}
	if err := os.MkdirAll(f.Path, 0o700); err != nil {
		return err
	}
	lock, err := lockFolder(f.Path)
	if err != nil {
		return err
	}
	f.lock.Close()
	f.lock = lock
	return nil
}

// isAt reports whether a path is that of an open file.
func isAt(f *os.File, path string) bool {
	own, ownErr := f.Stat()
	there, err := os.Lstat(path)
	return errors.Join(ownErr, err) == nil && os.SameFile(own, there)
}

// Socket is the path of llama-server's socket.
func (f *Folder) Socket() string { return filepath.Join(f.Path, SocketName) }

// Remove removes the folder and all files in it.
func (f *Folder) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.lock.Close()
	return os.RemoveAll(f.Path)
}

// Sweep removes the folders beside this one, and in other directories, whose processes were killed, and the
// files in them. Other users can make any file there.
func (f *Folder) Sweep(log *slog.Logger, other ...string) {
	for _, parent := range append([]string{filepath.Dir(f.Path)}, other...) {
		names, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			log.Debug("folders of other processes are not looked for", "path", parent, "error", err)
		}
		for _, entry := range names {
			path := filepath.Join(parent, entry.Name())
			if path == f.Path || !strings.HasPrefix(entry.Name(), folderPrefix) {
				continue
			}
			if err := removeDead(path); err != nil {
				log.Debug("a folder of another process stays", "path", path, "reason", err)
			}
		}
	}
}
