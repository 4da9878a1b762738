//go:build cgo

package pager

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// placed is a group of one layer, the model's layer 7, in pages of 16 cells, one of which is in memory.
type placed struct {
	*Group
	t *testing.T
}

const placedLayer = 7

func newPlaced(t *testing.T) placed {
	t.Helper()
	return placed{started(t, fresh(t, 1), placedLayer), t}
}

// started is a group whose layers are like [one], of a pager that has then started.
func started(t *testing.T, p *Pager, layers ...int) *Group {
	t.Helper()
	g := NewGroup(p, 0)
	t.Cleanup(g.Close)
	for _, layer := range layers {
		require.NoError(t, g.AddLayer(layer, one))
	}
	require.NoError(t, p.Start())
	return g
}

// rows are n rows of K or V, all of one byte.
func rows(n, value int) []byte { return slices.Repeat([]byte{byte(value)}, n*rowBytes) }

func (g placed) rowsOf(value bool) Rows {
	g.t.Helper()
	r, err := g.Rows(placedLayer, value)
	require.NoError(g.t, err)
	require.Equal(g.t, rowBytes, r.RowBytes(false))
	return r
}

func (g placed) write(cells []int32, value int) {
	g.t.Helper()
	for _, v := range []bool{false, true} {
		require.NoError(g.t, g.rowsOf(v).WriteRows(cells, false, rows(len(cells), value)))
	}
}

// file has n rows of K and as many of V, all of one byte.
func file(t *testing.T, n, value int) *os.File {
	t.Helper()
	f, err := os.CreateTemp(diskDir(t), "page-")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.Write(rows(2*n, value))
	require.NoError(t, err)
	return f
}

// place says that cells are in a file, whose rows are all of one byte.
func (g placed) place(cells []int32, value int) {
	g.t.Helper()
	f := file(g.t, len(cells), value)
	require.NoError(g.t, g.Place(cells, f, []int{placedLayer}, []int64{0}, []int64{int64(len(cells) * rowBytes)}))
	require.NoError(g.t, f.Close())
}

// restore writes rows of one byte to cells and says that a file has them.
func (g placed) restore(cells []int32, value int) {
	g.t.Helper()
	g.write(cells, value)
	g.place(cells, value)
}

// evict makes the page in memory leave it.
func (g placed) evict() {
	g.t.Helper()
	require.NoError(g.t, g.rowsOf(false).ReadRows([]int32{255}, false, rows(1, 0)))
}

// requireRows fails unless K and V of cells come back from disk as one byte.
func (g placed) requireRows(cells []int32, value int) {
	g.t.Helper()
	g.evict()
	got := rows(len(cells), 0)
	for _, v := range []bool{false, true} {
		require.NoError(g.t, g.rowsOf(v).ReadRows(cells, false, got))
		require.Equal(g.t, rows(len(cells), value), got)
	}
}

// written is the number of bytes written to the spill so far.
func (g placed) written() uint64 { return g.pager.Stats().WriteBytes }

// Rows of another sequence lie behind those that are restored in the same page.
func TestRowsBehindPlacedOnesStay(t *testing.T) {
	g := newPlaced(t)
	behind := cells(5, 11)
	g.write(cells(0, 5), 1)
	g.write(behind, 2)
	g.restore(cells(0, 5), 3)
	g.requireRows(behind, 2)
	g.requireRows(cells(0, 5), 3)
}

// Two slots are restored beside each other, and their rows meet in a page.
func TestRowsOfTwoRestoresInAPage(t *testing.T) {
	g := newPlaced(t)
	first, second := cells(0, 5), cells(5, 11)
	g.write(first, 1)
	g.write(second, 2)
	g.place(first, 1)
	g.evict()
	g.place(second, 2)
	written := g.written()
	g.requireRows(first, 1)
	g.requireRows(second, 2)
	require.Equal(t, written, g.written(), "a page that is in files as a whole was written to the spill")
}

// A page that is restored piece by piece, as a store's pages are smaller, is not written to
// the spill in between.
func TestRowsArePlacedPieceByPiece(t *testing.T) {
	g := newPlaced(t)
	for i, piece := range slices.Collect(slices.Chunk(cells(0, 15), 5)) {
		g.restore(piece, i+1)
		g.evict()
	}
	for i, piece := range slices.Collect(slices.Chunk(cells(0, 15), 5)) {
		g.requireRows(piece, i+1)
	}
	require.Zero(t, g.written())
}

// Rows of one restore may cross pages, and lie in any order of cells.
func TestRowsArePlacedAcrossPages(t *testing.T) {
	g := newPlaced(t)
	crossing := append(cells(32, 16), cells(0, 24)...)
	g.restore(crossing, 4)
	g.requireRows(crossing, 4)
	require.Empty(t, g.Group.placed[2], "a page that is in files as a whole still waits for rows")
	require.Len(t, g.Group.placed, 1)
}

// Rows that are in no file, as those of a compressed page, replace some that were.
func TestRowsThatReplacePlacedOnes(t *testing.T) {
	g := newPlaced(t)
	first, second := cells(0, 5), cells(5, 11)
	g.restore(first, 1)
	g.write(first, 2)
	g.restore(second, 3)
	g.requireRows(first, 2)
	g.requireRows(second, 3)
}

// Restored rows that were turned are not those of their file.
func TestRowsThatWereTurnedAfterPlacing(t *testing.T) {
	g := newPlaced(t)
	first, second := cells(0, 5), cells(5, 11)
	const one, negative = 0x3c, 0xbc // 1.06 in f16, twice the byte, and the bytes of its negative
	g.restore(first, one)
	var half []Plane // half a turn of all pairs
	for a := 0; a < 64; a += 2 {
		half = append(half, Plane{A: a, B: a + 1, M: [4]float32{-1, 0, 0, -1}})
	}
	require.NoError(t, g.Turn(first, map[int][]Plane{placedLayer: half}))
	g.restore(second, 3)
	g.requireRows(second, 3)
	k := rows(len(first), 0)
	require.NoError(t, g.rowsOf(false).ReadRows(first, false, k))
	for i := range k {
		require.Equal(t, []byte{one, negative}[i%2], k[i], "byte %d", i)
	}
}

// Rows of which one layer could not be placed are not added to later.
func TestPlaceThatFailsIsForgotten(t *testing.T) {
	g := newPlaced(t)
	g.write(cells(0, 5), 1)
	f := file(t, 5, 1)
	err := g.Place(cells(0, 5), f, []int{placedLayer, 9}, []int64{0, 0}, []int64{5 * rowBytes, 0})
	require.ErrorContains(t, err, "layer 9 has no K/V")
	require.Empty(t, g.Group.placed, "pages wait for more rows")
	require.ErrorContains(t, g.Place(cells(0, 5), f, []int{placedLayer}, nil, nil), "got 0 and 0 offsets")
}

// A page is given back once no pass in flight may attend to it, and no earlier.
func TestSweepWaitsForPassesInFlight(t *testing.T) {
	g := started(t, fresh(t, 4), 0)
	none := func(int, int) bool { return false }
	g.Wrote(cells(0, 32))
	g.Sweep(func(first, _ int) bool { return first == 0 })
	for pass := 1; pass < inFlight; pass++ {
		require.Equal(t, 2, g.Used(), "pass %d", pass)
		g.Wrote(nil)
		g.Sweep(none)
	}
	require.Equal(t, 2, g.Used())
	g.Wrote(nil)
	g.Sweep(none)
	require.Zero(t, g.Used())
}

func TestRowsNeedAPagerThatHasStarted(t *testing.T) {
	g := NewGroup(fresh(t, 1), 3)
	require.NoError(t, g.AddLayer(0, one))
	r, err := g.Rows(0, false)
	require.NoError(t, err)
	require.ErrorContains(t, r.WriteRows(cells(0, 1), false, rows(1, 0)), "no pages yet")
	_, err = g.Rows(1, false)
	require.ErrorContains(t, err, "layer 1 has no K/V")
	bad := one
	bad.KeyDim = 40
	require.Error(t, g.AddLayer(1, bad), "the op cannot compute it")
	require.Equal(t, []int{0}, g.Layers())
	key, value, ok := g.Dims(0)
	require.Equal(t, [3]any{64, 64, true}, [3]any{key, value, ok})
	require.Equal(t, uint64(pageBytes), g.PageBytes(0))
}

// The first error stays, and nothing is read after it.
func TestFailStays(t *testing.T) {
	p := fresh(t, 1)
	g := started(t, p, 0)
	r, err := g.Rows(0, false)
	require.NoError(t, err)
	require.NoError(t, r.WriteRows(cells(0, 1), false, rows(1, 1)))
	require.NoError(t, r.ReadRows(cells(0, 1), false, rows(1, 0)))
	first := errors.New("first")
	p.Fail(first)
	p.Fail(errors.New("second"))
	require.ErrorIs(t, r.ReadRows(cells(0, 1), false, rows(1, 0)), first)
	p.Close()
	p.Close()
	require.ErrorIs(t, p.Err(), first)
}

// Except counts for the batch in hand alone.
func TestOpsOfAGroup(t *testing.T) {
	g := started(t, fresh(t, 2), 0)
	begin := func() {
		g.Begin(BatchDesc{
			Pos: []int32{0, 1}, Seqs: []uint64{1, 1},
			QueryPos: []int32{0, 1}, QuerySeq: []uint32{0, 0}, QueryCell: []uint32{0, 1}, Window: 1 << 30,
		})
	}
	begin()
	first, err := g.Batch()
	require.NoError(t, err)
	again, err := g.Batch()
	require.NoError(t, err)
	require.Same(t, first, again)
	g.Except([]int{1})
	except, err := g.Batch()
	require.NoError(t, err)
	require.NotSame(t, first, except)
	require.Equal(t, []bool{false, true}, g.except)
	op, err := g.Op(0, 4, 1)
	require.NoError(t, err)
	require.NotNil(t, op)
	_, err = g.Op(1, 4, 1)
	require.ErrorContains(t, err, "no K/V in pages")
	_, err = g.Op(0, 3, 1)
	require.ErrorContains(t, err, "query heads", "3 heads cannot share 2 K/V heads")
	begin()
	require.Nil(t, g.except)
}

// A want that there is no room for takes nothing from smaller ones.
func TestMakeRoomLeavesRoomForLess(t *testing.T) {
	p, err := New(Config{PageCells: 16, RAMBytes: 2 * pageBytes, SpillDir: diskDir(t), SpillBytes: 9 * pageBytes})
	require.NoError(t, err)
	defer p.Close()
	a, b := NewGroup(p, 0), NewGroup(p, 1)
	require.NoError(t, a.AddLayer(0, one))
	require.NoError(t, b.AddLayer(1, one))
	// of the 11 pages one stays free to swap others
	require.ErrorIs(t, p.MakeRoom([]Want{{Group: a, Cells: 16 * 16}, {Group: b, Cells: 2 * 16, First: true}}), syscall.ENOSPC)
	require.Equal(t, 2*16, b.Room(), "what comes first")
	require.Equal(t, 8*16, a.Room())
	require.NoError(t, p.MakeRoom([]Want{{Group: a, Cells: 8 * 16}, {Group: b, Cells: 17}}))
	require.ErrorIs(t, p.MakeRoom([]Want{{Group: a, Cells: 8*16 + 1}}), syscall.ENOSPC)
}

// Rows are held as far as the pages of their layers are in memory: no more than frames hold.
func TestHeldBytesAreThoseInMemory(t *testing.T) {
	const frames, pages = 3, 10
	g := placed{started(t, fresh(t, frames), placedLayer, placedLayer+1), t}
	cells := make([]int32, 16*pages)
	for i := range cells {
		cells[i] = int32(i)
	}
	require.Zero(t, g.HeldBytes(cells), "nothing is written")
	g.write(cells[:16], 1)
	require.EqualValues(t, 16*2*rowBytes, g.HeldBytes(cells), "a page of one of two layers")
	g.write(cells, 2)
	for n := range pages + 1 {
		require.LessOrEqual(t, g.HeldBytes(cells[:16*n]), int64(min(n, frames)*16*2*rowBytes))
	}
	require.Positive(t, g.HeldBytes(cells))
	require.Zero(t, g.HeldBytes(nil))
	g.pager.Close()
	require.Zero(t, g.HeldBytes(cells))
}

// Shapes that the op does not compute are told apart from settings and failures.
func TestShapesThatCannotBePaged(t *testing.T) {
	g := NewGroup(fresh(t, 1), 0)
	var refused *NotPagedError
	odd := one
	odd.KeyDim = 40
	require.ErrorAs(t, g.AddLayer(0, odd), &refused)
	require.Contains(t, refused.Reason, "heads of a multiple of 16 elements")
	require.NotEmpty(t, refused.Remedy)
	require.NoError(t, g.AddLayer(0, one))
	g.Begin(BatchDesc{Pos: []int32{0}, Seqs: []uint64{1}, QueryPos: []int32{0}, QuerySeq: []uint32{0}, QueryCell: []uint32{0}})
	refused = nil
	_, err := g.Op(0, one.KVHeads+1, 1)
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Reason, "query heads")
	_, err = g.Op(1, one.KVHeads, 1)
	require.NotErrorIs(t, err, refused)
	require.Error(t, err)
}
