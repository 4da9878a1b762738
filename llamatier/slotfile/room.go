package slotfile

import (
	"errors"
	"fmt"
)

// kind is where a file is.
type kind uint8

const (
	inMemory kind = iota
	onDisk
	streamed // nowhere
	kinds
)

const (
	// memoryMax bounds the files in memory that exist together, in bytes, as long as a disk has
	// room.
	memoryMax = 512 << 20
	// memoryPart is the part of the available memory that such files take at most.
	memoryPart = 4
	// lastPart is the part of the available memory that files take at most if the disk has no
	// room.
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
	disk    func() int64 // the bytes that are free on the disk, or unknown
	claimed [kinds]int64 // of the files that exist
}

// choose returns where a file of a size is made. A file in memory is gone with its process, and
// no slow disk holds up llama-server, which computes nothing while it reads or writes a file. A
// large file would take memory that models need.
func (r room) choose(size int64) (kind, error) {
	if r.small(size) {
		return inMemory, nil
	}
	disk := r.disk()
	switch {
	case disk != unknown && size+r.claimed[onDisk] <= disk/diskPart:
		return onDisk, nil
	case r.memory && r.free != unknown && size+r.claimed[inMemory] <= r.free/lastPart:
		return inMemory, nil
	}
	return 0, fmt.Errorf("a file of %d MB: %w: free are %d MB of memory and %d MB on the disk",
		size/1e6, ErrNoRoom, max(0, r.free)/1e6, max(0, disk)/1e6)
}

// small reports whether a file is small against the memory. A file takes memory when it is
// written, so all files that exist count, although some memory is missing for them already.
func (r room) small(size int64) bool {
	all := size + r.claimed[inMemory]
	return r.memory && all <= memoryMax && (r.free == unknown || all <= r.free/memoryPart)
}
