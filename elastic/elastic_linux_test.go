//go:build cgo

package elastic

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	page = 4096
	mib  = 1 << 20
)

func newPool(t testing.TB, va uint64, device int, options Options) *Pool {
	t.Helper()
	p, err := New(va, device, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func alloc(t testing.TB, p *Pool, size uint64) *Buffer {
	t.Helper()
	b, err := p.Alloc(size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Free()) })
	return b
}

func stats(t require.TestingT, p *Pool) Stats {
	s, err := p.Stats()
	require.NoError(t, err)
	return s
}

// memory is a buffer's memory as bytes.
func (b *Buffer) memory() []byte { return unsafe.Slice((*byte)(b.base), b.size) }

// smaps are the named sizes, in bytes, of the mapping that an address is in.
func smaps(t testing.TB, address unsafe.Pointer) map[string]uint64 {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	sizes := make(map[string]uint64)
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			inside = from <= uintptr(address) && uintptr(address) < to
			continue
		}
		var kib uint64
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if n, _ := fmt.Sscanf(rest, "%d kB", &kib); inside && n == 1 {
			sizes[name] = kib * 1024
		}
	}
	// Memory that is swapped out is memory, too.
	sizes["Rss"] += sizes["Swap"]
	return sizes
}

func TestCreateAllocCommitUncommitDestroy(t *testing.T) {
	p, err := New(64*mib, Host, Options{})
	require.NoError(t, err)
	b, err := p.Alloc(16 * mib)
	require.NoError(t, err)
	require.EqualValues(t, 16*mib, b.Size())
	require.NoError(t, b.Commit(mib, 2*mib))
	b.memory()[mib] = 7
	committed, err := b.Committed(mib, 2*mib)
	require.NoError(t, err)
	require.True(t, committed)
	committed, err = b.Committed(0, 2*mib)
	require.NoError(t, err)
	require.False(t, committed)
	require.NoError(t, b.Uncommit(mib, 2*mib))
	require.Zero(t, b.memory()[mib])
	require.ErrorIs(t, p.Close(), ErrBusy)
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Free(), ErrInvalid)
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Close(), ErrInvalid)
	require.ErrorIs(t, b.Commit(0, 1), ErrInvalid)
	_, err = p.Stats()
	require.ErrorIs(t, err, ErrInvalid)
}

func TestErrorsHaveKindsAndNumbers(t *testing.T) {
	p := newPool(t, 64*mib, Host, Options{Limit: mib})
	b := alloc(t, p, 16*mib)
	err := b.Commit(0, 2*mib)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "limit of 1048576")
	require.NoError(t, b.Commit(0, mib))
	require.ErrorIs(t, p.Resize(4096), ErrOver)
	require.EqualValues(t, 4096, stats(t, p).Limit)
	require.ErrorIs(t, b.Commit(17*mib, 1), ErrInvalid)
	_, err = p.Alloc(1 << 40)
	require.ErrorIs(t, err, ErrLimit)
	_, err = New(mib, Host, Options{Granule: 5000})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = New(mib, 1<<40, Options{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = New(mib, 0, Options{CUDALibrary: "/nonexistent/libcuda.so"})
	require.ErrorIs(t, err, ErrNoVMM)
	free, total, err := p.Memory()
	require.NoError(t, err)
	require.NotZero(t, free)
	require.Greater(t, total, free)
}

// The kernel's accounts: 8 GiB reserved and 16 MiB committed are 16 MiB of memory, and
// uncommitted memory is back with the system when Uncommit returns, except the reserve.
func TestMemoryOfTheMapping(t *testing.T) {
	const gib = 1 << 30
	p := newPool(t, 8*gib, Host, Options{Reserve: 2 * mib})
	b := alloc(t, p, 8*gib)
	require.Zero(t, smaps(t, b.base)["Rss"])
	for i := uint64(0); i < 64*mib; i += page {
		require.Zero(t, b.memory()[i])
	}
	require.Zero(t, smaps(t, b.base)["Rss"], "reads of uncommitted memory take none")
	require.NoError(t, b.Commit(gib, 16*mib))
	require.EqualValues(t, 16*mib, smaps(t, b.base)["Rss"])
	require.Zero(t, smaps(t, b.base)["AnonHugePages"])
	require.NoError(t, b.Uncommit(gib, 16*mib))
	require.EqualValues(t, 2*mib, smaps(t, b.base)["Rss"])
	require.EqualValues(t, 2*mib, stats(t, p).Prealloc)
	require.NoError(t, p.Resize(0))
	require.Zero(t, smaps(t, b.base)["Rss"])
}

const granules = 16 // of the buffer of a random history

// A history is random calls on one buffer, and a map of the granules that are committed, with
// the byte that fills each.
type history struct {
	pool   *Pool
	buffer *Buffer
	held   map[uint64]byte
	limit  uint64 // granules
}

func drawRange(t *rapid.T) (first, n uint64) {
	first = rapid.Uint64Range(0, granules-1).Draw(t, "first")
	return first, rapid.Uint64Range(1, granules-first).Draw(t, "granules")
}

func (h *history) commit(t *rapid.T) {
	first, n := drawRange(t)
	var fresh []uint64
	for g := first; g < first+n; g++ {
		if _, ok := h.held[g]; !ok {
			fresh = append(fresh, g)
		}
	}
	err := h.buffer.Commit(first*page, n*page)
	if len(fresh) > 0 && uint64(len(h.held)+len(fresh)) > h.limit {
		require.ErrorIs(t, err, ErrLimit)
		return
	}
	require.NoError(t, err)
	for _, g := range fresh {
		at := h.buffer.memory()[g*page : (g+1)*page]
		require.Equal(t, make([]byte, page), at)
		h.held[g] = rapid.Byte().Draw(t, "byte")
		for i := range at {
			at[i] = h.held[g]
		}
	}
}

func (h *history) uncommit(t *rapid.T) {
	first, n := drawRange(t)
	require.NoError(t, h.buffer.Uncommit(first*page, n*page))
	for g := first; g < first+n; g++ {
		delete(h.held, g)
	}
}

func (h *history) resize(t *rapid.T) {
	h.limit = rapid.Uint64Range(0, granules).Draw(t, "limit")
	err := h.pool.Resize(h.limit * page)
	if uint64(len(h.held)) > h.limit {
		require.ErrorIs(t, err, ErrOver)
	} else {
		require.NoError(t, err)
	}
}

func (h *history) check(t *rapid.T) {
	s := stats(t, h.pool)
	require.EqualValues(t, len(h.held)*page, s.Committed)
	require.LessOrEqual(t, s.Prealloc, s.Reserve)
	for g := range uint64(granules) {
		value, ok := h.held[g]
		committed, err := h.buffer.Committed(g*page, page)
		require.NoError(t, err)
		require.Equal(t, ok, committed)
		if ok {
			require.Equal(t, value, h.buffer.memory()[g*page])
			require.Equal(t, value, h.buffer.memory()[(g+1)*page-1])
		}
	}
}

func TestAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := New(granules*page, Host, Options{Granule: page, Reserve: page * rapid.Uint64Range(0, 4).Draw(t, "reserve")})
		require.NoError(t, err)
		b, err := p.Alloc(granules * page)
		require.NoError(t, err)
		h := &history{pool: p, buffer: b, held: make(map[uint64]byte), limit: granules}
		t.Repeat(map[string]func(*rapid.T){"commit": h.commit, "uncommit": h.uncommit, "resize": h.resize, "": h.check})
		require.NoError(t, b.Free())
		require.NoError(t, p.Close())
	})
}

func TestGoroutinesShareAPool(t *testing.T) {
	p := newPool(t, 64*mib, Host, Options{Granule: page, Reserve: 64 * page})
	b := alloc(t, p, 16*mib)
	var group sync.WaitGroup
	for id := range uint64(4) {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range uint64(200) {
				at := (id*256 + i%200) * page
				if b.Commit(at, 3*page) == nil {
					b.memory()[at] = byte(id)
				}
				if b.Uncommit(at, 3*page) != nil || b.Commit(1<<40, 1) == nil {
					t.Error("a call ended wrongly")
				}
				if _, err := p.Stats(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for i := range uint64(200) {
		_ = p.Resize(i % 10 * page)
	}
	group.Wait()
	require.Zero(t, stats(t, p).Committed)
}

// A segment is the three numbers that tools of kvcached read.
func TestSegment(t *testing.T) {
	p := newPool(t, 64*mib, Host, Options{})
	b := alloc(t, p, 16*mib)
	name := fmt.Sprintf("kvtier-go-test-%d", os.Getpid())
	path := filepath.Join("/dev/shm", name)
	require.ErrorIs(t, p.Poll(), ErrInvalid, "no segment yet")
	require.NoError(t, p.Attach(name))
	require.NoError(t, b.Commit(0, mib))
	require.NoError(t, p.Poll())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var fields [3]int64
	read := func() {
		_, err := binary.Decode(text, binary.NativeEndian, &fields)
		require.NoError(t, err)
	}
	read()
	require.Equal(t, [3]int64{64 * mib, mib, 0}, fields)

	// A tool sets a limit; Watch applies it, and reports one that cannot be meant.
	write := func(total int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(total)))
		require.NoError(t, err)
	}
	reports := make(chan error, 1)
	stop := p.Watch(time.Millisecond, func(err error) {
		select {
		case reports <- err:
		default:
		}
	})
	write(2 * mib)
	require.Eventually(t, func() bool { return stats(t, p).Limit == 2*mib }, time.Minute, time.Millisecond)
	write(-5)
	require.ErrorIs(t, <-reports, ErrInvalid)
	stop()
	stop()
	require.EqualValues(t, 2*mib, stats(t, p).Limit)

	removed, err := Reap(name)
	require.NoError(t, err)
	require.Zero(t, removed, "its process lives")
}

// The CUDA backing from Go, over the fake driver that the C++ tests use.
func TestFakeDriver(t *testing.T) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("no C++ compiler on PATH")
	}
	library := filepath.Join(t.TempDir(), "libfakecuda.so")
	out, err := exec.Command(compiler, "-std=c++17", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Isrc", "-Itests/fakecuda", "-o", library,
		"tests/fakecuda/fakecuda.cpp", "tests/fakecuda/memory.cpp").CombinedOutput()
	require.NoError(t, err, string(out))
	p := newPool(t, 256*mib, 0, Options{CUDALibrary: library})
	require.EqualValues(t, 2*mib, stats(t, p).Granule)
	b := alloc(t, p, 128*mib)
	require.NoError(t, b.Commit(0, 3*mib))
	require.EqualValues(t, 4*mib, stats(t, p).Committed)
	b.memory()[0] = 1
	require.ErrorIs(t, b.Commit(0, 128*mib), ErrNoMemory, "the fake device has 64 MiB")
	require.EqualValues(t, 1, b.memory()[0])
	free, total, err := p.Memory()
	require.NoError(t, err)
	require.EqualValues(t, 58*mib, free, "two granules and the zero granule are taken")
	require.EqualValues(t, 64*mib, total)
	require.NoError(t, b.Uncommit(0, 3*mib))
}

func BenchmarkCommitUncommit(b *testing.B) {
	p := newPool(b, 64*mib, Host, Options{})
	buffer := alloc(b, p, 16*mib)
	for b.Loop() {
		require.NoError(b, buffer.Commit(0, 1))
		require.NoError(b, buffer.Uncommit(0, defaultGranule))
	}
}

// defaultGranule is the default granule of host memory, in bytes.
const defaultGranule = 64 << 10

func TestPools(t *testing.T) {
	made := map[int]int{}
	pools := NewPools(func(device int) (*Pool, error) {
		if made[device]++; device == 1 {
			return nil, &Error{Kind: ErrNoVMM, Message: "opening CUDA device 1: it has no virtual memory management"}
		}
		return New(64*mib, Host, Options{})
	})
	require.Empty(t, pools.All())
	host, err := pools.On(Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	for range 2 {
		_, err = pools.On(1)
		require.ErrorIs(t, err, ErrNoVMM)
		again, err := pools.On(Host)
		require.NoError(t, err)
		require.Same(t, host, again)
	}
	require.Equal(t, map[int]int{Host: 1, 1: 1}, made)
	require.Equal(t, []*Pool{host}, pools.All())
	require.Same(t, host, alloc(t, host, page).Pool())
	require.Equal(t, Host, host.Device())
}
