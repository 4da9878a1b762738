// Package slotfile makes the files through which the sequences of slots go between llama-server
// and this process.
//
// A [Folder] is llama-server's --slot-save-path. For each file the folder has a link, because
// llama-server accepts names without a slash only. [Files] makes files of two forms:
//
//   - a whole file, in memory while it is small, or else on a disk. Files.New returns ErrNoRoom
//     if neither has room;
//   - a [Stream], where the system allows one: its bytes are in no memory and on no disk, but
//     pass through this process while llama-server reads or writes them.
//
// A process that is killed leaves a folder, and files on a disk. The next process removes both:
// see [Folder.Sweep].
package slotfile

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/memory"
)

// Options configure Files.
type Options struct {
	// Available is the number of bytes of memory that may be taken; nil means memory.Available.
	Available func() (uint64, error)

	// Free is the number of free bytes on the disk of a directory; nil asks the system.
	Free func(dir string) (int64, error)

	Log *slog.Logger
}

// Files makes files of one engine. All methods may be called from several goroutines.
type Files struct {
	opt    Options
	folder *Folder
	memory bool // this system has files in memory

	mu      sync.Mutex
	disk    *Folder // of plain files; nil: the engine's folder
	mount   *mount  // of streams; nil without
	claimed [kinds]int64
	made    int
}

// New returns the Files of an engine whose --slot-save-path is a folder.
func New(folder *Folder, opt Options) *Files {
	if opt.Available == nil {
		opt.Available = memory.Available
	}
	if opt.Free == nil {
		opt.Free = func(dir string) (int64, error) {
			space, err := vfs.OS.Space(dir)
			return space.Free, err
		}
	}
	f, _, err := newMemory()
	if err == nil {
		f.Close() // it was made to see whether that works
	}
	return &Files{opt: opt, folder: folder, memory: err == nil}
}

// Dir is the engine's --slot-save-path.
func (f *Files) Dir() string { return f.folder.Path }

// UseDisk has plain files made in another folder, on a disk with more room.
func (f *Files) UseDisk(disk *Folder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disk = disk
}

// Room returns ErrNoRoom if there is no room for a file of size bytes. It looks at a disk, which
// may hang, for large files only.
func (f *Files) Room(size int64) error {
	_, _, err := f.choose(size, false)
	return err
}

// Small reports whether a file of size bytes would be in memory although the disk has room for it.
func (f *Files) Small(size int64) bool {
	free := f.free()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.roomLocked(free, unknown).small(size)
}

// free is the available memory, or unknown.
func (f *Files) free() int64 {
	if n, err := f.opt.Available(); err == nil {
		return int64(n)
	}
	return unknown
}

// roomLocked returns the room for another file.
func (f *Files) roomLocked(free, disk int64) room { return room{f.memory, free, disk, f.claimed} }

// choose returns where a file is made, and the folder of plain files. With claim, the file's
// bytes are claimed.
func (f *Files) choose(size int64, claim bool) (kind, *Folder, error) {
	free := f.free()
	f.mu.Lock()
	defer f.mu.Unlock()
	disk := cmp.Or(f.disk, f.folder)
	r := f.roomLocked(free, unknown)
	if !r.small(size) {
		f.mu.Unlock()
		there := f.onDisk(disk)
		f.mu.Lock()
		r = f.roomLocked(free, there)
	}
	place, err := r.choose(size)
	if err == nil && claim {
		f.claimed[place] += size
	}
	return place, disk, err
}

// onDisk is the number of free bytes on the disk of a folder, or unknown. A disk may hang.
func (f *Files) onDisk(disk *Folder) int64 {
	if err := disk.keep(); err != nil {
		f.opt.Log.Warn("kv tier: no folder for llama-server's files", "path", disk.Path, "error", err)
		return unknown
	}
	if n, err := f.opt.Free(disk.Path); err == nil {
		return n
	}
	return unknown
}

// File is a file that llama-server finds under a name in its --slot-save-path.
type File struct {
	*os.File        // nil for a stream
	Name     string // for the engine

	of    *Files
	kind  kind
	size  int64        // that is claimed
	paths []string     // that are removed with the file
	end   func() error // of the content
}

// OnDisk reports whether the file is on a disk, which may hang.
func (f *File) OnDisk() bool { return f.kind == onDisk }

// Streamed reports whether the file is a stream.
func (f *File) Streamed() bool { return f.kind == streamed }

// New makes an empty file that will have about size bytes. It returns ErrNoRoom if neither the
// memory nor the disk has room.
func (f *Files) New(size int64) (*File, error) {
	place, disk, err := f.choose(size, true)
	if err != nil {
		return nil, err
	}
	name := f.name()
	file, err := f.make(place, disk, name)
	if err != nil {
		f.unclaim(place, size)
		return nil, fmt.Errorf("make a file for llama-server: %w", err)
	}
	file.of, file.kind, file.size, file.Name = f, place, size, name
	return file, nil
}

// name returns the name of another file.
func (f *Files) name() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	return fmt.Sprintf("%s%d", filePrefix, f.made)
}

// unclaim notes that a file with a number of bytes exists no more.
func (f *Files) unclaim(place kind, size int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimed[place] -= size
}

// make makes a file and its link.
func (f *Files) make(place kind, disk *Folder, name string) (*File, error) {
	made, link := &File{}, filepath.Join(f.folder.Path, name)
	var target string
	var err error
	if place == inMemory {
		made.File, target, err = newMemory()
	} else {
		target = filepath.Join(disk.Path, name)
		made.File, err = os.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		made.paths = []string{target}
	}
	if err != nil {
		return nil, err
	}
	made.end = made.File.Close
	if target == link {
		return made, nil
	}
	if err := os.Symlink(target, link); err != nil {
		return nil, errors.Join(err, made.remove())
	}
	made.paths = append([]string{link}, made.paths...)
	return made, nil
}

// remove removes a file. The link goes first, so that it never leads to another file.
func (f *File) remove() error {
	var errs []error
	for _, path := range f.paths {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(append(errs, f.end())...)
}

// Opened returns a channel that is closed when a process opens the file for the first time from now on; nil
// where the system does not tell.
func (f *File) Opened() <-chan struct{} {
	opened, stop, err := opens(filepath.Join(f.of.folder.Path, f.Name))
	if err != nil { // an instance of inotify may not be had
		return nil
	}
	end := f.end
	f.end = func() error { return errors.Join(stop(), end()) }
	return opened
}

// Close removes the file. The engine must not use the file any more.
func (f *File) Close() error {
	err := f.remove()
	if err != nil {
		f.of.opt.Log.Debug("a file of llama-server stays", "name", f.Name, "error", err)
	}
	f.of.unclaim(f.kind, f.size)
	return err
}

// kind is where a file is.
type kind uint8

const (
	inMemory kind = iota
	onDisk
	streamed // nowhere
	kinds
)

const (
	// memoryMax bounds the files in memory that exist together, in bytes, as long as a disk has room.
	memoryMax = 512 << 20
	// memoryPart is the part of the available memory that such files take at most.
	memoryPart = 4
	// lastPart is the part of the available memory that files take at most if the disk has no room.
	lastPart = 2
	// diskPart is the part of the disk's free bytes that files take at most: the pages that are
	// made of a file need room beside it.
	diskPart = 2
)

// ErrNoRoom reports a file that neither the memory nor the disk has room for.
var ErrNoRoom = errors.New("there is no room for it")

// unknown is a number of bytes that the system does not tell.
const unknown = -1

// room is the room for another file, in bytes.
type room struct {
	memory  bool         // this system has files in memory
	free    int64        // of the available memory, or unknown
	disk    int64        // the bytes that are free on the disk, or unknown
	claimed [kinds]int64 // of the files that exist
}

// choose returns where a file of a size is made. A file in memory is gone with its process, and
// no slow disk holds up llama-server, which computes nothing while it reads or writes a file. A
// large file would take memory that models need.
func (r room) choose(size int64) (kind, error) {
	if r.small(size) {
		return inMemory, nil
	}
	switch {
	case r.disk != unknown && size+r.claimed[onDisk] <= r.disk/diskPart:
		return onDisk, nil
	case r.memory && r.free != unknown && size+r.claimed[inMemory] <= r.free/lastPart:
		return inMemory, nil
	}
	return 0, fmt.Errorf("a file of %d MB: %w: free are %d MB of memory and %d MB on the disk",
		size/1e6, ErrNoRoom, max(0, r.free)/1e6, max(0, r.disk)/1e6)
}

// small reports whether a file is small against the memory. A file takes memory when it is
// written, so all files that exist count, although some memory is missing for them already.
func (r room) small(size int64) bool {
	all := size + r.claimed[inMemory]
	return r.memory && all <= memoryMax && (r.free == unknown || all <= r.free/memoryPart)
}
