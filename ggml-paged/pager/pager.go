package pager

import (
	"fmt"
	"time"
	"unsafe"
)

// ErrUnsupported is New's error on systems without a pager.
var ErrUnsupported error = NotPaged("paged attention needs Linux and a build with cgo", SmallerContext)

// A NotPagedError says why a model's K/V cannot be paged with any memory and spill, and what to do.
type NotPagedError struct {
	Reason, Remedy string
}

func (e *NotPagedError) Error() string { return e.Reason }

// NotPaged returns a [NotPagedError].
func NotPaged(reason, remedy string) error { return &NotPagedError{reason, remedy} }

// SmallerContext is the remedy for a model that no setting makes pageable.
const SmallerContext = "lower num_ctx where its context does not fit in memory"

// MaxSequences is the number of sequences that a cell can distinguish.
const MaxSequences = 64

// A Type is a format of elements of K or V; the numbers are ggml's.
type Type int

const (
	F16  Type = 1
	Q4_0 Type = 2
	Q8_0 Type = 8
)

// String is ggml's name of the type.
func (t Type) String() string {
	switch t {
	case F16:
		return "f16"
	case Q4_0:
		return "q4_0"
	case Q8_0:
		return "q8_0"
	}
	return fmt.Sprintf("type %d", int(t))
}

// Config sets the memory of a pager and the place for other pages.
type Config struct {
	PageCells  int    // a power of two in [16, 65536]
	RAMBytes   uint64 // sum over all frames
	SpillDir   string // "": pages never leave memory
	SpillBytes uint64 // 0: no cap
	Direct     bool   // bypass the page cache for spilled pages

	// Selects makes room for what blocks of PageCells positions are chosen by.
	Selects bool

	// Settings names the settings that give more memory and disk, for errors about room; may be empty.
	Settings string

	// C functions for the frames' memory, as kvp_config has them; nil: anonymous memory.
	ArenaAlloc, ArenaFree unsafe.Pointer
}

// A Layer is the K and V of one attention layer for the cells of a group.
type Layer struct {
	Group            int // 0 .. 15
	Cells            int // capacity, the same for all layers of a group
	KVHeads          int
	KeyDim, ValueDim int
	KeyType          Type
	ValueType        Type
}

// A Plane of a rotation of K: elements A and B of each head become M[0]*a + M[1]*b and M[2]*a + M[3]*b.
type Plane struct {
	A, B int
	M    [4]float32
}

// A Section of a file holds rows [First, First+N) of a page.
type Section struct {
	FD                     uintptr
	First, N               int
	KeyOffset, ValueOffset int64
}

// A BatchDesc is a forward pass's knowledge of the cells of a group.
type BatchDesc struct {
	Group     int
	FirstCell int      // a multiple of Config.PageCells
	Pos       []int32  // position of each cell from FirstCell on
	Seqs      []uint64 // sequence bits of each cell, 0: unused
	QueryPos  []int32
	QuerySeq  []uint32
	QueryCell []uint32 // cells of the batch's own rows
	Select    []bool   // queries that choose, with Config.Selects; or nil
	// SelectCells is how many cells they attend to. See kvp_params.
	SelectCells int
	Window      int32 // math.MaxInt32: none
	Chunk       int32 // 0: none
	Reserve     bool  // only sizes matter
}

// Params are an op's own settings.
type Params struct {
	Layer   int // AddLayer's number
	Heads   int // query heads
	Scale   float32
	Softcap float32
	MaxBias float32
}

// Stats are the counts of a pager so far.
type Stats struct {
	Frames, FramesUsed    uint64
	ArenaBytes            uint64
	SpillBytes            uint64 // room made in the spill file
	Hits, Misses          uint64
	ReadBytes, WriteBytes uint64
	SectionBytes          uint64 // part of ReadBytes
	Evictions             uint64
	Prefetches            uint64 // pages that were read before they were needed
	PrefetchHits          uint64 // of these, those that were used
	Waited                time.Duration

	// Of choices: blocks of a layer that queries saw, those that they attended to, and the memory of
	// the bounds by which they were chosen.
	SeenBlocks, ChosenBlocks, BoundsBytes uint64
}

// DeviceStats are the counts of pages that stay in video memory, of all devices.
type DeviceStats struct {
	Bytes, Pages uint64 // now
	Hits         uint64 // pages that attention found there
	Fills        uint64 // pages that were put there
	Evictions    uint64 // pages that made room for others
}
