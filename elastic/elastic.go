package elastic

import (
	"errors"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/memory"
)

// Host is the device number of host memory.
const Host = -1

// The errors of this package wrap one of these.
var (
	ErrInvalid  = errors.New("elastic: invalid argument")
	ErrLimit    = errors.New("elastic: limit reached")
	ErrNoMemory = errors.New("elastic: out of memory")

	// ErrNoVMM: no driver, or no virtual memory management: memory can only be allocated at once.
	ErrNoVMM = errors.New("elastic: no virtual memory management")

	// ErrBusy: buffers of a pool, the lock of a segment, or the name of a segment.
	ErrBusy   = errors.New("elastic: in use")
	ErrSystem = errors.New("elastic: system or driver failed")

	// ErrOver: a new limit is in force, and more is committed. Nothing is taken.
	ErrOver = errors.New("elastic: more is committed than the new limit")

	ErrUnsupported = errors.New("elastic: KV memory can be elastic on Linux with cgo alone")
)

// An Error is a failed call: its sentence has the operation, the object with numbers, and the remedy.
type Error struct {
	Kind    error // one of the errors above
	Message string
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Kind }

// Options of a pool. The zero value asks for defaults.
type Options struct {
	Granule    uint64 // bytes, a power of two; 0: 64 KiB in host memory, else the driver's granularity
	Reserve    uint64 // bytes of uncommitted memory that are kept for reuse at most
	Limit      uint64 // bytes; 0: all of the address space
	NoPopulate bool   // host memory: pages come with the first write, not with Commit
	HugePages  bool   // host memory: leave huge pages to the system's setting
	Bare       bool   // CUDA: uncommitted granules are not mapped, and must not be touched
	BareEnd    bool   // CUDA: the same for those behind the last committed one of a buffer

	// CUDALibrary is the driver's library; "": $KVC_CUDA_LIBRARY, else libcuda.so.1.
	CUDALibrary string
}

// Stats of a pool. Sizes are in bytes.
type Stats struct {
	Granule         uint64
	VA              uint64 // address space that buffers may have in all
	Reserved        uint64 // address space of the buffers there are
	Limit           uint64 // smaller than Committed after a resize below it
	Committed, Peak uint64
	Prealloc        uint64 // uncommitted memory that is kept
	Reserve         uint64 // Prealloc at most
	Buffers         uint64

	Commits          uint64 // calls that committed granules
	CommitGranules   uint64
	ReusedGranules   uint64 // part of CommitGranules that came from Prealloc
	CommitTime       time.Duration
	Uncommits        uint64
	UncommitGranules uint64
	UncommitTime     time.Duration
	Refused          uint64 // commits that the limit refused
	Failed           uint64 // commits and uncommits that the system or the driver failed
}

// Available is the memory that the system can give to this process, in bytes: without swapping,
// and within the limits of its control groups.
func Available() (uint64, error) { return memory.Available() }

// Watch polls the pool's segment on a goroutine of its own, and hands each failure to report,
// which may be nil. A lock that another process holds is no failure: the next round tries
// again. The returned function ends the goroutine and waits for it; call it before Close.
func (p *Pool) Watch(every time.Duration, report func(error)) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				if err := p.Poll(); err != nil && !errors.Is(err, ErrBusy) && report != nil {
					report(err)
				}
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(end)
		<-ended
	})
}
