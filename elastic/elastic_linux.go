//go:build cgo

package elastic

// #cgo CPPFLAGS: -I${SRCDIR}/include -I${SRCDIR}/src -D_GNU_SOURCE
// #cgo CXXFLAGS: -std=c++17 -O2
// #cgo LDFLAGS: -lstdc++ -lpthread -ldl -lrt
// #include <stdlib.h>
// #include "kvc.h"
import "C"

import (
	"math"
	"runtime"
	"time"
	"unsafe"
)

// A Pool has the memory of one device, or of the host. Its methods may be called by any
// goroutine. After Close they return ErrInvalid.
type Pool struct {
	p      *C.kvc_pool_t
	device int
}

// A Buffer is a range of addresses of a pool. Its methods may be called by any goroutine.
// After Free they return ErrInvalid.
type Buffer struct {
	b    *C.kvc_buffer_t
	base unsafe.Pointer
	size uint64
	pool *Pool
}

var kinds = map[C.int]error{
	C.KVC_E_INVALID: ErrInvalid, C.KVC_E_LIMIT: ErrLimit, C.KVC_E_NO_MEMORY: ErrNoMemory, C.KVC_E_NO_VMM: ErrNoVMM,
	C.KVC_E_BUSY: ErrBusy, C.KVC_E_SYSTEM: ErrSystem, C.KVC_E_OVER: ErrOver,
}

// call runs f and makes an error of its code and the library's sentence, which is kept per thread.
func call(f func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if rc := f(); rc < 0 {
		return &Error{Kind: kinds[rc], Message: C.GoString(C.kvc_last_error())}
	}
	return nil
}

// ask is call for a question, which f answers with 1 or 0.
func ask(f func() C.int) (yes bool, err error) {
	err = call(func() C.int {
		rc := f()
		yes = rc == 1
		return rc
	})
	return yes, err
}

// New makes a pool with address space for va bytes on a device: a CUDA device number, or Host.
func New(va uint64, device int, options Options) (*Pool, error) {
	if device < math.MinInt32 || device > math.MaxInt32 {
		return nil, &Error{Kind: ErrInvalid, Message: "creating a pool: the device number does not fit in 32 bits"}
	}
	o := C.kvc_options_t{
		granule_bytes: C.size_t(options.Granule), reserve_bytes: C.size_t(options.Reserve), limit_bytes: C.size_t(options.Limit),
	}
	for flag, set := range map[C.uint32_t]bool{
		C.KVC_NO_POPULATE: options.NoPopulate, C.KVC_HUGE_PAGES: options.HugePages, C.KVC_BARE: options.Bare,
		C.KVC_BARE_END: options.BareEnd,
	} {
		if set {
			o.flags |= flag
		}
	}
	if options.CUDALibrary != "" {
		o.cuda_library = C.CString(options.CUDALibrary)
		defer C.free(unsafe.Pointer(o.cuda_library))
	}
	p := &Pool{device: device}
	if err := call(func() C.int { return C.kvc_pool_create_ex(C.size_t(va), C.int(device), &o, &p.p) }); err != nil {
		return nil, err
	}
	return p, nil
}

// Device is a CUDA device number, or Host.
func (p *Pool) Device() int { return p.device }

// Close destroys the pool and its segment. ErrBusy while it has buffers.
func (p *Pool) Close() error {
	return call(func() C.int { return C.kvc_pool_destroy(p.p) })
}

// Resize sets the limit in bytes. ErrOver where more is committed: the limit is in force nevertheless.
func (p *Pool) Resize(limit uint64) error {
	return call(func() C.int { return C.kvc_pool_resize(p.p, C.size_t(limit)) })
}

// Stats are the pool's accounts and counts so far.
func (p *Pool) Stats() (Stats, error) {
	var s C.kvc_stats_t
	if err := call(func() C.int { return C.kvc_pool_stats(p.p, &s) }); err != nil {
		return Stats{}, err
	}
	return Stats{
		Granule: uint64(s.granule_bytes), VA: uint64(s.va_bytes), Reserved: uint64(s.reserved_bytes), Limit: uint64(s.limit_bytes),
		Committed: uint64(s.committed_bytes), Peak: uint64(s.peak_bytes), Prealloc: uint64(s.prealloc_bytes),
		Reserve: uint64(s.reserve_bytes), Buffers: uint64(s.buffers),
		Commits: uint64(s.commits), CommitGranules: uint64(s.commit_granules), ReusedGranules: uint64(s.reused_granules),
		CommitTime: time.Duration(s.commit_ns), Uncommits: uint64(s.uncommits), UncommitGranules: uint64(s.uncommit_granules),
		UncommitTime: time.Duration(s.uncommit_ns), Refused: uint64(s.refused), Failed: uint64(s.failed),
	}, nil
}

// Memory is the free and the total memory of the device or the system, in bytes.
func (p *Pool) Memory() (free, total uint64, err error) {
	var f, t C.uint64_t
	err = call(func() C.int { return C.kvc_pool_memory(p.p, &f, &t) })
	return uint64(f), uint64(t), err
}

// Attach makes the pool's segment in /dev/shm, through which tools see it and set its limit.
// Poll does the work. ErrBusy where a live process has the name.
func (p *Pool) Attach(name string) error {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return call(func() C.int { return C.kvc_pool_attach_shm(p.p, c) })
}

// Poll does one round with the segment, and never waits for a lock: ErrBusy where another
// process holds it, ErrInvalid where a tool set a limit that cannot be meant.
func (p *Pool) Poll() error {
	return call(func() C.int { return C.kvc_pool_poll_shm(p.p) })
}

// Tell sets numbers that the next Poll shows programs that divide memory between processes: the bytes
// that work which runs will commit under any limit, those that work lacks while it waits, and the
// committed ones that a lower limit would free.
func (p *Pool) Tell(promised, lacking, spare uint64) error {
	return call(func() C.int {
		return C.kvc_pool_tell_shm(p.p, C.uint64_t(promised), C.uint64_t(lacking), C.uint64_t(spare))
	})
}

// Reap removes segments of this user's dead processes, by a prefix of the name, and returns their
// number.
func Reap(prefix string) (int, error) {
	c := C.CString(prefix)
	defer C.free(unsafe.Pointer(c))
	var removed C.int
	err := call(func() C.int { return C.kvc_shm_reap(c, &removed) })
	return int(removed), err
}

// Alloc reserves addresses for size bytes and commits nothing.
func (p *Pool) Alloc(size uint64) (*Buffer, error) {
	b := &Buffer{size: size, pool: p}
	if err := call(func() C.int { return C.kvc_buffer_alloc(p.p, C.size_t(size), &b.b) }); err != nil {
		return nil, err
	}
	b.base = C.kvc_buffer_get_base(b.b)
	return b, nil
}

// Base is the first address, on the pool's device.
func (b *Buffer) Base() unsafe.Pointer { return b.base }

// Size is the size in bytes that was asked for.
func (b *Buffer) Size() uint64 { return b.size }

// Pool is the pool that the addresses are of.
func (b *Buffer) Pool() *Pool { return b.pool }

// Commit commits the granules that [offset, offset+size) touches, all or none.
func (b *Buffer) Commit(offset, size uint64) error {
	return call(func() C.int { return C.kvc_buffer_commit(b.b, C.size_t(offset), C.size_t(size)) })
}

// Uncommit uncommits the granules that lie wholly inside [offset, offset+size).
func (b *Buffer) Uncommit(offset, size uint64) error {
	return call(func() C.int { return C.kvc_buffer_uncommit(b.b, C.size_t(offset), C.size_t(size)) })
}

// Committed reports whether all granules that the range touches are committed.
func (b *Buffer) Committed(offset, size uint64) (bool, error) {
	return ask(func() C.int { return C.kvc_buffer_committed(b.b, C.size_t(offset), C.size_t(size)) })
}

// Disturbs reports whether a commit of the range would change mappings that may be touched.
func (b *Buffer) Disturbs(offset, size uint64) (bool, error) {
	return ask(func() C.int { return C.kvc_buffer_disturbs(b.b, C.size_t(offset), C.size_t(size)) })
}

// Free gives memory and addresses back.
func (b *Buffer) Free() error {
	return call(func() C.int { return C.kvc_buffer_free(b.b) })
}
