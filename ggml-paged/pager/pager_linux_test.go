//go:build cgo

package pager

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// one is a layer of 2 KV heads of 64 in f16: a row of K or V is 256 bytes, a page of 16
// cells is 4096 bytes each.
var one = Layer{Cells: 1024, KVHeads: 2, KeyDim: 64, ValueDim: 64, KeyType: F16, ValueType: F16}

const (
	rowBytes  = 2 * 64 * 2
	pageBytes = 2 * 16 * rowBytes
)

// fresh is a pager that has not started.
func fresh(t *testing.T, frames int) *Pager {
	t.Helper()
	p, err := New(Config{PageCells: 16, RAMBytes: uint64(frames * pageBytes), SpillDir: diskDir(t), Direct: true})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func open(t *testing.T, frames int, layers ...Layer) *Pager {
	t.Helper()
	p := fresh(t, frames)
	for i, l := range layers {
		id, err := p.AddLayer(l)
		require.NoError(t, err)
		require.Equal(t, i, id)
	}
	require.NoError(t, p.Start())
	return p
}

// diskDir is a directory that is not in memory.
func diskDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the directory for temporary files is in memory; set TMPDIR")
	}
	return dir
}

func cells(first, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(first + i)
	}
	return list
}

func randomRows(r *rand.Rand, n int) []byte {
	rows := make([]byte, n*rowBytes)
	for i := range rows {
		rows[i] = byte(r.Uint32())
	}
	return rows
}

func TestRowsComeBackThroughTheSpill(t *testing.T) {
	p := open(t, 2, one, one)
	r := rand.New(rand.NewPCG(1, 1))
	k, v := [2][]byte{}, [2][]byte{}
	for layer := range 2 {
		k[layer], v[layer] = randomRows(r, 1024), randomRows(r, 1024)
		require.NoError(t, p.WriteRows(layer, cells(0, 1024), k[layer], v[layer]))
	}
	got := make([]byte, 1024*rowBytes)
	for layer := range 2 {
		require.NoError(t, p.ReadRows(layer, cells(0, 1024), got, nil))
		require.Equal(t, k[layer], got)
		require.NoError(t, p.ReadRows(layer, cells(0, 1024), nil, got))
		require.Equal(t, v[layer], got)
	}
	stats := p.Stats()
	require.LessOrEqual(t, stats.FramesUsed, uint64(2))
	require.Positive(t, stats.WriteBytes)
	require.NoError(t, p.Err())
}

func TestWrongBuffersAreRefused(t *testing.T) {
	p := open(t, 2, one)
	require.Error(t, p.WriteRows(0, cells(0, 2), make([]byte, rowBytes), nil))
	require.Error(t, p.ReadRows(0, cells(0, 1), nil, make([]byte, 3*rowBytes)))
	require.NoError(t, p.ReadRows(0, nil, nil, nil))
}

func TestErrorsKeepTheirNumberAndSayWhatToDo(t *testing.T) {
	_, err := New(Config{PageCells: 17, RAMBytes: 1 << 20})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "17")

	if _, err := os.Stat("/dev/shm"); err == nil {
		_, err = New(Config{PageCells: 16, RAMBytes: 1 << 20, SpillDir: "/dev/shm"})
		require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		require.ErrorContains(t, err, "/dev/shm")
	}

	p, err := New(Config{PageCells: 16, RAMBytes: 2 * pageBytes, SpillDir: diskDir(t), SpillBytes: 3 * pageBytes})
	require.NoError(t, err)
	defer p.Close()
	_, err = p.AddLayer(one)
	require.NoError(t, err)
	require.NoError(t, p.Start())
	require.NoError(t, p.Reserve(0, 4)) // and one more page of room, to swap pages
	require.ErrorIs(t, p.Reserve(0, 6), syscall.ENOSPC)
}

// Errors are kept per thread by the library: each goroutine must see its own.
func TestErrorsOfManyGoroutines(t *testing.T) {
	var running sync.WaitGroup
	for i := range 8 {
		running.Add(1)
		go func() {
			defer running.Done()
			for range 200 {
				_, err := New(Config{PageCells: 1001 + 2*i, RAMBytes: 1 << 20})
				if err == nil || !strings.Contains(err.Error(), strconv.Itoa(1001+2*i)) {
					t.Errorf("goroutine %d got the error %v", i, err)
					return
				}
			}
		}()
	}
	running.Wait()
}

// A quarter turn is exact in f16: a' = -b, b' = a.
func TestRotate(t *testing.T) {
	p := open(t, 1, one)
	row := make([]byte, rowBytes)
	half := func(i int) uint16 { return binary.LittleEndian.Uint16(row[2*i:]) }
	for i := range rowBytes / 2 {
		binary.LittleEndian.PutUint16(row[2*i:], uint16(0x3c00+i)) // slightly more than 1
	}
	require.NoError(t, p.WriteRows(0, []int32{3}, row, nil))
	require.NoError(t, p.WriteRows(0, []int32{4}, row, nil))
	turn := []Plane{{A: 0, B: 32, M: [4]float32{0, -1, 1, 0}}}
	require.NoError(t, p.Rotate(0, 0, []uint64{1 << 3}, turn))
	require.NoError(t, p.WriteRows(0, cells(100, 64), make([]byte, 64*rowBytes), nil)) // evict it

	want := append([]byte(nil), row...)
	for head := range 2 {
		a, b := half(64*head), half(64*head+32)
		binary.LittleEndian.PutUint16(want[2*64*head:], b^0x8000)
		binary.LittleEndian.PutUint16(want[2*(64*head+32):], a)
	}
	got := make([]byte, rowBytes)
	require.NoError(t, p.ReadRows(0, []int32{3}, got, nil))
	require.Equal(t, want, got)
	require.NoError(t, p.ReadRows(0, []int32{4}, got, nil))
	require.Equal(t, row, got, "a cell without a rotation")
}

// Pages in a file are read from that file, and not written to the spill file, even after the
// file has lost its name.
func TestBack(t *testing.T) {
	p := open(t, 1, one)
	r := rand.New(rand.NewPCG(2, 2))
	k, v := randomRows(r, 32), randomRows(r, 32)
	name := filepath.Join(diskDir(t), "rows")
	require.NoError(t, os.WriteFile(name, append(append([]byte("head"), k...), v...), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	for page := range 2 {
		require.NoError(t, p.WriteRows(0, cells(16*page, 16), k[16*page*rowBytes:][:16*rowBytes], v[16*page*rowBytes:][:16*rowBytes]))
		at := int64(4 + 16*page*rowBytes)
		require.NoError(t, p.Back(0, page, []Section{
			{FD: f.Fd(), First: 0, N: 7, KeyOffset: at, ValueOffset: at + int64(len(k))},
			{FD: f.Fd(), First: 7, N: 9, KeyOffset: at + 7*rowBytes, ValueOffset: at + int64(len(k)) + 7*rowBytes},
		}))
	}
	require.NoError(t, f.Close())
	before := p.Stats().WriteBytes
	require.NoError(t, p.WriteRows(0, cells(64, 1), make([]byte, rowBytes), nil)) // evicts the remaining pages
	got := make([]byte, 32*rowBytes)
	require.NoError(t, p.ReadRows(0, cells(0, 32), nil, got))
	require.Equal(t, v, got)
	require.NoError(t, p.ReadRows(0, cells(0, 32), got, nil))
	require.Equal(t, k, got)
	stats := p.Stats()
	require.Positive(t, stats.SectionBytes)
	require.LessOrEqual(t, stats.WriteBytes-before, uint64(pageBytes), "only the page outside of files")
}

func TestBatchesAndOps(t *testing.T) {
	p := open(t, 2, one)
	desc := BatchDesc{
		Pos: []int32{0, 1, 2}, Seqs: []uint64{1, 1, 1},
		QueryPos: []int32{2}, QuerySeq: []uint32{0}, QueryCell: []uint32{2}, Window: math.MaxInt32,
	}
	b, err := p.Begin(desc)
	require.NoError(t, err)
	op, err := b.Op(Params{Layer: 0, Heads: 4, Scale: 1})
	require.NoError(t, err)
	require.NotNil(t, op)
	_, err = b.Op(Params{Layer: 0, Heads: 3, Scale: 1})
	require.ErrorIs(t, err, syscall.EINVAL, "3 heads cannot share 2 KV heads")
	_, err = b.Op(Params{Layer: 9, Heads: 4, Scale: 1})
	require.Error(t, err)

	seen, err := b.Except([]bool{true})
	require.NoError(t, err)
	require.NotSame(t, b, seen)

	desc.QuerySeq = nil
	_, err = p.Begin(desc)
	require.Error(t, err)
	desc.QuerySeq, desc.Pos, desc.Seqs = []uint32{0}, nil, nil
	_, err = p.Begin(desc)
	require.Error(t, err)
}

// Unsupported ops are refused before a pager has started, with an error.
func TestSupported(t *testing.T) {
	layer := one
	require.NoError(t, Supported(layer, 4))
	require.ErrorContains(t, Supported(layer, 3), "K/V heads")
	require.ErrorContains(t, Supported(layer, 0), "K/V heads")
	layer.KeyDim, layer.ValueDim = 40, 40
	require.ErrorContains(t, Supported(layer, 4), "heads of a multiple of 16 elements; the model's have 40 for K and 40 for V")
	layer.KeyDim = 64
	require.Error(t, Supported(layer, 4), "only V has a wrong size")
}
