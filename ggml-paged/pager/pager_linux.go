//go:build cgo

package pager

// #cgo CPPFLAGS: -I${SRCDIR}/../include -I${SRCDIR}/../src -D_GNU_SOURCE
// #cgo CXXFLAGS: -std=c++17 -O3
// #cgo LDFLAGS: -lstdc++ -lpthread -lm
// #include <stdlib.h>
// #include "paged_attn.h"
// #ifdef __GLIBC__
// #include <malloc.h>
// static void trim_heap(void) { malloc_trim(0); }
// #else
// static void trim_heap(void) {}
// #endif
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// A Pager owns the frames, the spill file and the batches of one runner.
type Pager struct {
	p         *C.kvp_pager
	pageCells int
	settings  string // Config.Settings
	selects   bool   // Config.Selects
	started   atomic.Bool

	life  sync.RWMutex // held shared while Stats looks at p, exclusively while Close frees it
	final Stats        // of a closed pager

	failed struct {
		sync.Mutex // graphs are built beside copies of rows
		err        error
	}
}

// A Batch is a forward pass's copy of its knowledge of a group's cells. The pager
// keeps the last few of each group.
type Batch struct {
	b           *C.kvp_batch
	selectCells int // BatchDesc.SelectCells
}

// call runs f, which returns 0 or a negative errno, and makes an error of the library's
// sentence. The text is kept per thread.
func call(f func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if rc := f(); rc < 0 {
		return &Error{Errno: syscall.Errno(-rc), Message: C.GoString(C.kvp_last_error())}
	}
	return nil
}

// TrimHeap gives the system what C code has freed, which glibc keeps below memory that is in use.
func TrimHeap() { C.trim_heap() }

// An Error is a failed call: the operation and the remedy, and its errno.
type Error struct {
	Errno   syscall.Errno
	Message string
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Errno }

// Here returns ErrUnsupported on a system without a pager.
func Here() error { return nil }

// New makes a pager; frames are made by Start, once the layers are known.
func New(config Config) (*Pager, error) {
	c := C.kvp_config{
		page_cells:  C.uint32_t(config.PageCells),
		ram_bytes:   C.uint64_t(config.RAMBytes),
		spill_bytes: C.uint64_t(config.SpillBytes),
	}
	if config.ArenaAlloc != nil && config.ArenaFree != nil {
		c.arena_alloc = (*[0]byte)(config.ArenaAlloc)
		c.arena_free = (*[0]byte)(config.ArenaFree)
	}
	if config.Direct {
		c.direct = 1
	}
	if config.SpillDir != "" {
		c.spill_dir = C.CString(config.SpillDir)
		defer C.free(unsafe.Pointer(c.spill_dir))
	}
	p := &Pager{pageCells: config.PageCells, settings: config.Settings, selects: config.Selects}
	if err := call(func() C.int { return C.kvp_pager_create(&c, &p.p) }); err != nil {
		return nil, err
	}
	return p, nil
}

// Close frees the pager. No op of this pager may be computed afterwards. A second call does nothing.
func (p *Pager) Close() {
	p.life.Lock()
	defer p.life.Unlock()
	if p.p == nil {
		return
	}
	p.final = p.statsNow()
	p.final.Frames, p.final.FramesUsed, p.final.ArenaBytes, p.final.SpillBytes, p.final.BoundsBytes = 0, 0, 0, 0, 0
	C.kvp_pager_free(p.p)
	p.p = nil
}

// Closed reports whether the pager is closed.
func (p *Pager) Closed() bool {
	p.life.RLock()
	defer p.life.RUnlock()
	return p.p == nil
}

// AddLayer adds a layer before Start and returns its number.
func (p *Pager) AddLayer(l Layer) (int, error) {
	desc := l.desc()
	var layer C.uint32_t
	err := call(func() C.int { return C.kvp_layer_add(p.p, &desc, &layer) })
	return int(layer), err
}

func (l Layer) desc() C.kvp_layer_desc {
	return C.kvp_layer_desc{
		group: C.uint32_t(l.Group), n_cells: C.uint32_t(l.Cells), kv_heads: C.uint32_t(l.KVHeads),
		dk: C.uint32_t(l.KeyDim), dv: C.uint32_t(l.ValueDim), type_k: C.int(l.KeyType), type_v: C.int(l.ValueType),
	}
}

// Supported returns an error if attention with a number of query heads cannot be computed on
// such a layer. Of the layer only heads, dimensions and types count.
func Supported(l Layer, heads int) error {
	desc := l.desc()
	return call(func() C.int { return C.kvp_supported(&desc, C.uint32_t(heads)) })
}

// Start makes the frames. Once they are made a call does nothing.
func (p *Pager) Start() error {
	if p.Started() {
		return nil
	}
	err := p.room(call(func() C.int { return C.kvp_pager_start(p.p) }))
	p.started.Store(err == nil)
	return err
}

// Started reports whether there are frames.
func (p *Pager) Started() bool { return p.started.Load() }

// PageCells is the number of cells of a page.
func (p *Pager) PageCells() int { return p.pageCells }

// room adds the settings to an error about room.
func (p *Pager) room(err error) error {
	var lack *Error
	if p.settings != "" && errors.As(err, &lack) && (lack.Errno == syscall.ENOSPC || lack.Errno == syscall.ENOMEM) {
		lack.Message += " (" + p.settings + ")"
	}
	return err
}

// PageBytes is the size of a layer's page in bytes.
func (p *Pager) PageBytes(layer int) uint64 {
	return uint64(C.kvp_layer_page_bytes(p.p, C.uint32_t(layer)))
}

// RowBytes are the sizes of a cell's K and V in a layer, in bytes.
func (p *Pager) RowBytes(layer int) (key, value int) {
	return int(C.kvp_layer_row_k(p.p, C.uint32_t(layer))), int(C.kvp_layer_row_v(p.p, C.uint32_t(layer)))
}

// Reserve makes room for the first pages of a group.
func (p *Pager) Reserve(group, pages int) error {
	return p.room(call(func() C.int { return C.kvp_reserve(p.p, C.uint32_t(group), C.uint32_t(pages)) }))
}

// BoundsBytes is the memory beside RAMBytes by which a block of a layer is chosen: 0 without Config.Selects.
func (p *Pager) BoundsBytes(layer int) uint64 {
	if !p.selects {
		return 0
	}
	return uint64(C.kvp_bounds_bytes(p.p, C.uint32_t(layer)))
}

// Drop drops the contents of a page in all layers of a group.
func (p *Pager) Drop(group, page int) {
	C.kvp_drop(p.p, C.uint32_t(group), C.uint32_t(page))
	C.kvp_bounds_drop(p.p, C.uint32_t(group), C.uint32_t(page))
}

// ReadRows copies one row per cell to k and v, either of which may be nil.
func (p *Pager) ReadRows(layer int, cells []int32, k, v []byte) error {
	if err := p.checkRows(layer, cells, k, v); err != nil || len(cells) == 0 {
		return err
	}
	return call(func() C.int {
		return C.kvp_rows_read(p.p, C.uint32_t(layer), (*C.uint32_t)(unsafe.Pointer(&cells[0])), C.uint32_t(len(cells)), bytes(k), bytes(v))
	})
}

// WriteRows copies one row per cell from k and v, either of which may be nil.
func (p *Pager) WriteRows(layer int, cells []int32, k, v []byte) error {
	if err := p.checkRows(layer, cells, k, v); err != nil || len(cells) == 0 {
		return err
	}
	return call(func() C.int {
		return C.kvp_rows_write(p.p, C.uint32_t(layer), (*C.uint32_t)(unsafe.Pointer(&cells[0])), C.uint32_t(len(cells)), bytes(k), bytes(v))
	})
}

func (p *Pager) checkRows(layer int, cells []int32, k, v []byte) error {
	key, value := p.RowBytes(layer)
	if k != nil && len(k) != key*len(cells) || v != nil && len(v) != value*len(cells) {
		return fmt.Errorf("copying %d rows of layer %d: the buffers hold %d bytes of K and %d of V, wanted %d and %d",
			len(cells), layer, len(k), len(v), key*len(cells), value*len(cells))
	}
	return nil
}

func bytes(b []byte) unsafe.Pointer {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Pointer(&b[0])
}

// Rotate rotates K of the cells of a page whose bits are set, when the page is next used.
func (p *Pager) Rotate(layer, page int, cells []uint64, planes []Plane) error {
	if len(cells) == 0 || len(planes) == 0 {
		return nil
	}
	c := make([]C.kvp_plane, len(planes))
	for i, plane := range planes {
		c[i].a, c[i].b = C.uint16_t(plane.A), C.uint16_t(plane.B)
		for j, m := range plane.M {
			c[i].m[j] = C.float(m)
		}
	}
	return call(func() C.int {
		return C.kvp_rotate(p.p, C.uint32_t(layer), C.uint32_t(page), (*C.uint64_t)(unsafe.Pointer(&cells[0])), &c[0], C.uint32_t(len(c)))
	})
}

// Back names the sections of files that already have the present contents of a page.
func (p *Pager) Back(layer, page int, sections []Section) error {
	if len(sections) == 0 {
		return nil
	}
	c := make([]C.kvp_extent, len(sections))
	for i, s := range sections {
		c[i] = C.kvp_extent{
			fd: C.int(s.FD), first: C.uint32_t(s.First), n: C.uint32_t(s.N),
			k_offset: C.uint64_t(s.KeyOffset), v_offset: C.uint64_t(s.ValueOffset),
		}
	}
	return call(func() C.int {
		return C.kvp_back(p.p, C.uint32_t(layer), C.uint32_t(page), &c[0], C.uint32_t(len(c)))
	})
}

// Err is the first error after which results must not be used: an I/O error on a page, or
// that of Fail. It stays, also after Close.
func (p *Pager) Err() error {
	p.failed.Lock()
	defer p.failed.Unlock()
	if p.failed.err == nil && p.p != nil {
		p.failed.err = p.pageError()
	}
	return p.failed.err
}

// Fail notes an error of a graph that is being built, such as an op that could not be made.
func (p *Pager) Fail(err error) {
	p.failed.Lock()
	defer p.failed.Unlock()
	if p.failed.err == nil {
		p.failed.err = err
	}
}

func (p *Pager) pageError() error {
	var message *C.char
	if rc := C.kvp_pager_error(p.p, &message); rc < 0 {
		return &Error{Errno: syscall.Errno(-rc), Message: C.GoString(message)}
	}
	return nil
}

// Stats are the counts so far, also after Close. Any goroutine may call Stats at any time.
func (p *Pager) Stats() Stats {
	p.life.RLock()
	defer p.life.RUnlock()
	if p.p == nil {
		return p.final
	}
	return p.statsNow()
}

func (p *Pager) statsNow() Stats {
	var s C.kvp_stats
	C.kvp_pager_stats(p.p, &s)
	var of C.kvp_select_stats
	C.kvp_pager_select_stats(p.p, &of)
	return Stats{
		Frames: uint64(s.frames), FramesUsed: uint64(s.frames_used),
		ArenaBytes: uint64(s.arena_bytes), SpillBytes: uint64(s.spill_bytes),
		Hits: uint64(s.hits), Misses: uint64(s.misses),
		ReadBytes: uint64(s.read_bytes), WriteBytes: uint64(s.write_bytes), SectionBytes: uint64(s.extent_bytes),
		Evictions: uint64(s.evictions), Prefetches: uint64(s.prefetches), PrefetchHits: uint64(s.prefetch_hits), Waited: time.Duration(s.wait_ns),
		SeenBlocks: uint64(of.seen_blocks), ChosenBlocks: uint64(of.chosen_blocks), BoundsBytes: uint64(of.bounds_bytes),
	}
}

// Held writes, for the first pages of a group, the bytes of K and V of one cell in those layers whose
// page is in memory now. Held may be called at any time, by any goroutine.
func (p *Pager) Held(group int, bytes []uint64) {
	p.life.RLock()
	defer p.life.RUnlock()
	if clear(bytes); p.p != nil && len(bytes) > 0 {
		C.kvp_held(p.p, C.uint32_t(group), (*C.uint64_t)(unsafe.Pointer(&bytes[0])), C.uint32_t(len(bytes)))
	}
}

// Begin copies a forward pass's knowledge of a group's cells.
func (p *Pager) Begin(d BatchDesc) (*Batch, error) {
	if len(d.Pos) != len(d.Seqs) || len(d.QueryPos) != len(d.QuerySeq) || len(d.QueryPos) != len(d.QueryCell) {
		return nil, errors.New("describing a batch: its lists differ in length")
	}
	if len(d.Pos) == 0 || len(d.QueryPos) == 0 {
		return nil, errors.New("describing a batch: it has no cells or no queries")
	}
	// the lists are Go memory, and pinned because the description holds pointers to them
	var pins runtime.Pinner
	defer pins.Unpin()
	for _, p := range []any{&d.Pos[0], &d.Seqs[0], &d.QueryPos[0], &d.QuerySeq[0], &d.QueryCell[0]} {
		pins.Pin(p)
	}
	desc := C.kvp_batch_desc{
		group: C.uint32_t(d.Group), first_cell: C.uint32_t(d.FirstCell), n_cells: C.uint32_t(len(d.Pos)),
		pos: (*C.int32_t)(unsafe.Pointer(&d.Pos[0])), seqs: (*C.uint64_t)(unsafe.Pointer(&d.Seqs[0])),
		n_q:   C.uint32_t(len(d.QueryPos)),
		q_pos: (*C.int32_t)(unsafe.Pointer(&d.QueryPos[0])), q_seq: (*C.uint32_t)(unsafe.Pointer(&d.QuerySeq[0])),
		q_cell: (*C.uint32_t)(unsafe.Pointer(&d.QueryCell[0])),
		window: C.int32_t(d.Window), chunk: C.int32_t(d.Chunk),
	}
	if d.Reserve {
		desc.reserve = 1
	}
	if len(d.Select) == len(d.QueryPos) && slices.Contains(d.Select, true) {
		marks := bytesOf(d.Select)
		pins.Pin(&marks[0])
		desc.q_select = (*C.uint8_t)(unsafe.Pointer(&marks[0]))
	}
	b := &Batch{selectCells: d.SelectCells}
	if err := call(func() C.int { return C.kvp_batch_begin(p.p, &desc, &b.b) }); err != nil {
		return nil, err
	}
	return b, nil
}

// bytesOf is 1 for true.
func bytesOf(marks []bool) []uint8 {
	bytes := make([]uint8, len(marks))
	for i, marked := range marks {
		if marked {
			bytes[i] = 1
		}
	}
	return bytes
}

// Except derives a batch in which some queries see later cells, too.
func (b *Batch) Except(queries []bool) (*Batch, error) {
	if len(queries) == 0 {
		return b, nil
	}
	except := bytesOf(queries)
	derived := &Batch{selectCells: b.selectCells}
	if err := call(func() C.int {
		return C.kvp_batch_except(b.b, (*C.uint8_t)(unsafe.Pointer(&except[0])), &derived.b)
	}); err != nil {
		return nil, err
	}
	return derived, nil
}

// Op makes one attention layer's op for ggml_flash_attn_ext_paged, which lives as long as the batch.
func (b *Batch) Op(params Params) (unsafe.Pointer, error) {
	c := C.kvp_params{
		layer: C.uint32_t(params.Layer), heads: C.uint32_t(params.Heads),
		scale: C.float(params.Scale), softcap: C.float(params.Softcap), max_bias: C.float(params.MaxBias),
		select_cells: C.uint32_t(b.selectCells),
	}
	var op *C.kvp_op
	if err := call(func() C.int { return C.kvp_op_new(b.b, &c, &op) }); err != nil {
		return nil, err
	}
	return unsafe.Pointer(op), nil
}
