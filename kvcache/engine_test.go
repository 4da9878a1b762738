package kvcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"
)

// fakeCache is a cache with upstream's cell logic and an arithmetic that shows every
// mistake: the row of a position is a hash of its token and of the rows it attends to, read
// from the cache when the batch is computed. One wrong byte changes all later rows.
type fakeCache struct {
	ollama.Cache // methods that only models call

	// window and memory are math.MaxInt32 in a cache that keeps all positions. In such a cache a row
	// depends on the row before it; in a cache with a window, on all visible rows.
	window, memory int32

	cells  []fakeCell
	layers int
	device *fakeDevice
	rows   map[section][]byte // per layer and kind, one row per cell; guarded by the device's mu

	// unwritten counts, for each reserved cell, the rows not written yet; guarded by the device's mu.
	unwritten map[int32]int

	batchCells []int32
	onWrite    func()
	onRead     func() error
	onShift    func() error
	rigid      bool // the model cannot shift
	closed     bool
}

type fakeCell struct {
	pos  int32
	seqs []int
}

type section struct {
	layer int
	value bool
}

const (
	fakeKeyBytes   = 24 // different, and no powers of two, so that mixing up K and V shows
	fakeValueBytes = 40
)

func newFakeCache(cells, layers int) *fakeCache {
	c := &fakeCache{
		window: math.MaxInt32, memory: math.MaxInt32,
		cells: make([]fakeCell, cells), layers: layers, rows: make(map[section][]byte),
		unwritten: make(map[int32]int),
	}
	for s, n := range c.sections() {
		c.rows[s] = make([]byte, cells*n)
	}
	c.on(&fakeDevice{})
	return c
}

func (c *fakeCache) RowLayers() []int {
	var layers []int
	for l := range c.layers {
		layers = append(layers, l)
	}
	return layers
}

func (c *fakeCache) RowBytes(layer int, value bool) (int, error) {
	if value {
		return fakeValueBytes, nil
	}
	return fakeKeyBytes, nil
}

// sections yields every section of the cache and the size of its rows in bytes.
func (c *fakeCache) sections() iter.Seq2[section, int] {
	return func(yield func(section, int) bool) {
		for l := range c.layers {
			if !yield(section{l, false}, fakeKeyBytes) || !yield(section{l, true}, fakeValueBytes) {
				return
			}
		}
	}
}

func (c *fakeCache) row(s section, cell int32) []byte {
	n, _ := c.RowBytes(s.layer, s.value)
	return c.rows[s][int(cell)*n : (int(cell)+1)*n]
}

func (c *fakeCache) ReadRows(layer int, value bool, cells []int32, dst []byte) error {
	if c.onRead != nil {
		if err := c.onRead(); err != nil {
			return err
		}
	}
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	if c.closed {
		return errors.New("the cache is closed")
	}
	c.device.copiedLocked()
	n, _ := c.RowBytes(layer, value)
	if len(dst) != n*len(cells) {
		return fmt.Errorf("%d bytes for %d rows", len(dst), len(cells))
	}
	c.device.moved.read(cells, n)
	for i, cell := range cells {
		copy(dst[i*n:], c.row(section{layer, value}, cell))
	}
	return nil
}

func (c *fakeCache) WriteRows(layer int, value bool, cells []int32, src []byte) error {
	if c.onWrite != nil {
		c.onWrite()
	}
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	c.device.copiedLocked()
	n, _ := c.RowBytes(layer, value)
	if len(src) != n*len(cells) {
		return fmt.Errorf("%d bytes for %d rows", len(src), len(cells))
	}
	c.device.moved.write(cells, n)
	filler := bytes.Count(src, []byte{poison}) == len(src) || bytes.Count(src, []byte{0}) == len(src)
	for i, cell := range cells {
		copy(c.row(section{layer, value}, cell), src[i*n:(i+1)*n])
		if !filler {
			c.unwritten[cell]--
		}
	}
	return nil
}

func (c *fakeCache) RowsBeside() bool                         { return !c.device.host }
func (c *fakeCache) MarkRows() (wait func())                  { return c.device.mark() }
func (c *fakeCache) RowWindow() (window, memory int32)        { return c.window, c.memory }
func (c *fakeCache) SynchronizeRows()                         { c.device.synchronize() }
func (c *fakeCache) BatchCells() []int32                      { return c.batchCells }
func (c *fakeCache) Close()                                   { c.closed = true }
func (c *fakeCache) Init(ml.Backend, ml.DType, int, int, int) {}
func (c *fakeCache) free(cell int) bool                       { return len(c.cells[cell].seqs) == 0 }
func (c *fakeCache) holds(cell, seq int) bool                 { return slices.Contains(c.cells[cell].seqs, seq) }
func (c *fakeCache) drop(cell, seq int) {
	c.cells[cell].seqs = slices.DeleteFunc(c.cells[cell].seqs, func(s int) bool { return s == seq })
}

func (c *fakeCache) take(seq int, pos int32) (int32, bool) {
	for i := range c.cells {
		if c.free(i) {
			c.cells[i] = fakeCell{pos, []int{seq}}
			c.device.mu.Lock()
			delete(c.unwritten, int32(i))
			c.device.mu.Unlock()
			return int32(i), true
		}
	}
	return 0, false
}

// ends is the end position of each sequence.
func (c *fakeCache) ends() map[int]int32 {
	ends := make(map[int]int32)
	for _, cell := range c.cells {
		for _, seq := range cell.seqs {
			ends[seq] = max(ends[seq], cell.pos+1)
		}
	}
	return ends
}

// slide frees cells too far before a position, as StartForward does.
func (c *fakeCache) slide(seq int, pos int32) {
	for i := range c.cells {
		if c.memory != math.MaxInt32 && c.holds(i, seq) && c.cells[i].pos < pos-c.memory {
			c.drop(i, seq)
		}
	}
}

// visible are the cells of the rows that a position's row depends on.
func (c *fakeCache) visible(seq int, pos int32) []int32 {
	first := pos - 1
	if c.window != math.MaxInt32 {
		first = max(0, pos-c.window)
	}
	var cells []int32
	for at := max(0, first); at < pos; at++ {
		if cell, ok := c.cellOf(seq, at); ok {
			cells = append(cells, cell)
		}
	}
	return cells
}

// CanResume does as upstream's.
func (c *fakeCache) CanResume(seq int, pos int32) bool {
	if c.memory == math.MaxInt32 {
		return true
	}
	first, last := int32(math.MaxInt32), int32(-1)
	for i := range c.cells {
		if c.holds(i, seq) {
			first, last = min(first, c.cells[i].pos), max(last, c.cells[i].pos)
		}
	}
	return last >= 0 && max(0, pos-c.window) >= first && pos <= last+1
}

func (c *fakeCache) ReserveCells(seq int, begin, end int32, preferred []int32) ([]int32, error) {
	ends := c.ends()
	ends[seq] = end
	for s, end := range ends {
		c.slide(s, end)
	}
	var cells []int32
	for pos := begin; pos < end; pos++ {
		cell, ok := int32(-1), false
		if preferred != nil && c.free(int(preferred[pos-begin])) {
			cell, ok = preferred[pos-begin], true
			c.cells[cell] = fakeCell{pos, []int{seq}}
		}
		if !ok {
			cell, ok = c.take(seq, pos)
		}
		if !ok {
			for _, cell := range cells {
				c.cells[cell].seqs = nil
			}
			return nil, ollama.ErrKvCacheFull
		}
		cells = append(cells, cell)
	}
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	for _, cell := range cells {
		c.unwritten[cell] = 2 * c.layers
	}
	return cells, nil
}

func (c *fakeCache) cellOf(seq int, pos int32) (int32, bool) {
	for i := range c.cells {
		if c.holds(i, seq) && c.cells[i].pos == pos {
			return int32(i), true
		}
	}
	return 0, false
}

func (c *fakeCache) Remove(seq int, begin, end int32) error {
	if c.rigid && end != math.MaxInt32 {
		return ollama.ErrNotSupported
	}
	for i := range c.cells {
		if !c.holds(i, seq) {
			continue
		}
		switch pos := c.cells[i].pos; {
		case pos >= begin && pos < end:
			c.drop(i, seq)
		case pos >= end:
			if len(c.cells[i].seqs) > 1 {
				return errors.New("shifting cells shared by multiple sequences not supported")
			}
			c.cells[i].pos += begin - end
			c.device.hand(func() { c.turn(int32(i), begin-end) })
		}
	}
	return nil
}

// turn changes K of a cell in place, as a rotation by offset positions does. turn runs on the device.
func (c *fakeCache) turn(cell, offset int32) {
	for l := range c.layers {
		turnRow(c.row(section{l, false}, cell), offset)
	}
}

func turnRow(row []byte, offset int32) {
	for i := range row {
		row[i] += byte(offset)
	}
}

func (c *fakeCache) ShiftRows(cells []int32, offset int32) error {
	if c.onShift != nil {
		if err := c.onShift(); err != nil {
			return err
		}
	}
	c.device.graph(func() {
		for _, cell := range cells {
			c.turn(cell, offset)
		}
	})
	return nil
}

func (c *fakeCache) CopyPrefix(src, dst int, n int32) {
	for i := range c.cells {
		c.drop(i, dst)
		if c.holds(i, src) && c.cells[i].pos < n {
			c.cells[i].seqs = append(c.cells[i].seqs, dst)
		}
	}
}

// build takes cells for a batch, as StartForward does.
func (c *fakeCache) build(t require.TestingT, batch input.Batch) {
	c.batchCells = nil
	begins := c.ends()
	for i := len(batch.Sequences) - 1; i >= 0; i-- {
		begins[batch.Sequences[i]] = batch.Positions[i]
	}
	for seq, begin := range begins {
		c.slide(seq, begin)
	}
	for i, seq := range batch.Sequences {
		cell, ok := c.take(seq, batch.Positions[i])
		require.True(t, ok, "cache full")
		c.batchCells = append(c.batchCells, cell)
	}
}

// compute writes the rows of a built batch, even if its cells belong to others by now: a
// graph knows only cells. before are the cells that each input attends to, noted at build
// time. compute runs on the device.
func (c *fakeCache) compute(tokens []int32, cells []int32, before [][]int32) {
	for i, token := range tokens {
		for s, n := range c.sections() {
			var previous []byte
			for _, cell := range before[i] {
				previous = append(previous, c.row(s, cell)...)
			}
			copy(c.row(s, cells[i]), rowAfter(s, previous, token, n))
		}
	}
}

// rowAfter is the row of a token that attends to the given rows. Rows are remembered,
// because computing them takes most of the time of the random interleavings.
func rowAfter(s section, previous []byte, token int32, n int) []byte {
	key := rowKey{s, string(previous), token, n}
	rowsSeen.Lock()
	defer rowsSeen.Unlock()
	if row, ok := rowsSeen.m[key]; ok {
		return row
	}
	if len(rowsSeen.m) >= 1<<17 || rowsSeen.m == nil {
		rowsSeen.m = make(map[rowKey][]byte)
	}
	h := sha256.New()
	fmt.Fprint(h, s.layer, s.value)
	h.Write(previous)
	_ = binary.Write(h, binary.LittleEndian, token)
	row := bytes.Repeat(h.Sum(nil), 2)[:n:n]
	rowsSeen.m[key] = row
	return row
}

type rowKey struct {
	section
	previous string
	token    int32
	n        int
}

var rowsSeen struct {
	sync.Mutex
	m map[rowKey][]byte
}

// wantRows are the rows of a prefix in one section, as an undisturbed engine computes them
// in a cache with the given window.
func wantRows(s section, window int32, tokens []int32, n int) [][]byte {
	if window == math.MaxInt32 {
		window = 1
	}
	var rows [][]byte
	for pos, token := range tokens {
		previous := bytes.Join(rows[max(0, pos-int(window)):], nil)
		rows = append(rows, rowAfter(s, previous, token, n))
	}
	return rows
}

// requireRows checks that a sequence's cells hold the rows that follow from its tokens, as
// far as the next token attends to them, after the device has computed all its work.
func (c *fakeCache) requireRows(t require.TestingT, seq int, tokens []int32) {
	c.device.later(func() { c.requireRowsNow(t, seq, tokens) })
}

// requireRowsNow is requireRows without waiting for the device. The device's mu is held.
func (c *fakeCache) requireRowsNow(t require.TestingT, seq int, tokens []int32) {
	held := c.held()[seq]
	for s, n := range c.sections() {
		for pos, want := range wantRows(s, c.window, tokens, n) {
			if pos < len(tokens)-int(c.window) {
				continue
			}
			cell, ok := held[int32(pos)]
			if ok && bytes.Equal(want, c.row(s, cell)) {
				continue
			}
			require.True(t, ok, "sequence %d has no cell for position %d", seq, pos)
			require.Equal(t, want, c.row(s, cell), "sequence %d position %d cell %d layer %d value %v", seq, pos, cell, s.layer, s.value)
		}
	}
}
