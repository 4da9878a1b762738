package kvcache

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

/*
Reads from a device. A transfer takes a time of its own, beside the time of its bytes, and the
host waits for each. So rows of several pages, of one slot or of several, are read at once for
each layer:

	cells         3  4  5  6  7  8  9 10 …      page A: 3 5 7, page B: 4 6, cell 8 is of no page
	span          [3              7]           one transfer, into a buffer
	pieces         A  B  A  B  A               copied to the payloads of A and B
*/

const (
	// gapBytes is the size of rows of no page that are read to save a transfer. PCIe 3.0 moves
	// 32 KiB in 3 µs; a transfer and the wait for it take 8 µs or more.
	gapBytes = 32 << 10
	// bounceMax bounds a buffer for spans of several pieces, in bytes.
	bounceMax = 4 << 20
)

// cellSpan is a range of cells, from a row of a page to another, that is read in one transfer.
type cellSpan struct {
	first, count int
	pieces       []piece
}

// piece is a run of a page's rows: rows [row, row+count) are rows [at, at+count) of the span.
type piece struct{ page, row, at, count int }

// spansOf covers cells, which are given for each page. A span has at most `most` cells, and
// no gap of more than `gap` cells.
func spansOf(cells [][]int32, gap, most int) []cellSpan {
	type place struct{ cell, page, row int }
	var places []place
	for page := range cells {
		for row, cell := range cells[page] {
			places = append(places, place{int(cell), page, row})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.cell, b.cell), cmp.Compare(a.page, b.page))
	})
	var spans []cellSpan
	for _, p := range places {
		n := len(spans)
		if n == 0 || p.cell-(spans[n-1].first+spans[n-1].count) > gap || p.cell-spans[n-1].first >= most {
			spans = append(spans, cellSpan{first: p.cell})
			n++
		}
		spans[n-1].add(p.cell, p.page, p.row)
	}
	return spans
}

// add adds a cell that is not before the span's last one.
func (s *cellSpan) add(cell, page, row int) {
	at := cell - s.first
	s.count = at + 1
	if n := len(s.pieces); n > 0 {
		last := &s.pieces[n-1]
		if last.page == page && last.row+last.count == row && last.at+last.count == at {
			last.count++
			return
		}
	}
	s.pieces = append(s.pieces, piece{page, row, at, 1})
}

// numbers are the span's cells.
func (s *cellSpan) numbers() []int32 {
	cells := make([]int32, s.count)
	for i := range cells {
		cells[i] = int32(s.first + i)
	}
	return cells
}

// gatherSpans copies the rows of pages in the wanted groups out of a device. buffer bounds a
// transfer of more than one piece.
func gatherSpans(groups []group, pages []pageRows, wanted func(g int) bool, buffer []byte) error {
	type shape struct{ group, rowBytes int }
	known := make(map[shape][]cellSpan)
	done := make(map[pagefile.Section]bool)
	for i := range pages {
		for _, s := range pages[i].layout.Sections() {
			g := groupOf(groups, s)
			if done[s] || !s.Kind.PerToken() || s.Kind == pagefile.KindCell || !wanted(g) {
				continue
			}
			done[s] = true
			rows, cells := rowsOf(pages, s, g)
			n := int(s.RowBytes)
			spans, ok := known[shape{g, n}]
			if !ok {
				spans = spansOf(cells, gapBytes/n, max(1, len(buffer)/n))
				known[shape{g, n}] = spans
			}
			if err := readSpans(&groups[g], s, spans, rows, buffer); err != nil {
				return fmt.Errorf("copy rows of layer %d out: %w", s.Layer, err)
			}
		}
	}
	return nil
}

// rowsOf returns each page's rows of a section, and their cells: none for a page without the section.
func rowsOf(pages []pageRows, s pagefile.Section, g int) (rows [][]byte, cells [][]int32) {
	rows, cells = make([][]byte, len(pages)), make([][]int32, len(pages))
	for i := range pages {
		if at := slices.Index(pages[i].layout.Sections(), s); at >= 0 {
			rows[i], cells[i] = pages[i].layout.Rows(pages[i].payload, at), pages[i].cells[g]
		}
	}
	return rows, cells
}

// readSpans copies one section's rows of all pages.
func readSpans(g *group, s pagefile.Section, spans []cellSpan, rows [][]byte, buffer []byte) error {
	n := int(s.RowBytes)
	for i := range spans {
		sp := &spans[i]
		into := buffer
		if first := sp.pieces[0]; len(sp.pieces) == 1 {
			into = rows[first.page][first.row*n:]
		} else if len(buffer) < n { // and two pages share the cell
			into = make([]byte, n)
		}
		into = into[:sp.count*n]
		if err := g.ReadRows(int(s.Layer), s.Kind == pagefile.KindV, sp.numbers(), into); err != nil {
			return err
		}
		if len(sp.pieces) == 1 {
			continue
		}
		for _, p := range sp.pieces {
			copy(rows[p.page][p.row*n:(p.row+p.count)*n], into[p.at*n:])
		}
	}
	return nil
}

// pageRows are the rows of a page, and the cells of each group that have them.
type pageRows struct {
	layout  pagefile.Layout
	payload []byte
	cells   [][]int32
}

// destination is where a page's rows go: for group g, the rows from row from[g] on go to cells[g].
type destination struct {
	from  []int
	cells [][]int32
}

// gather copies a page's rows in the wanted groups, and state, into its payload.
func gather(groups []group, states States, page pageRows, wanted func(group int) bool) error {
	layout, cells := page.layout, page.cells
	for i, s := range layout.Sections() {
		rows := layout.Rows(page.payload, i)
		if !s.Kind.PerToken() {
			if err := states.ReadState(int(s.Layer), s.Kind == pagefile.KindState, rows); err != nil {
				return fmt.Errorf("copy the state of layer %d out: %w", s.Layer, err)
			}
			continue
		}
		g := groupOf(groups, s)
		if !wanted(g) {
			continue
		}
		if s.Kind == pagefile.KindCell {
			for j, cell := range cells[g] {
				binary.LittleEndian.PutUint32(rows[4*j:], uint32(cell))
			}
			continue
		}
		if err := groups[g].ReadRows(int(s.Layer), s.Kind == pagefile.KindV, cells[g], rows); err != nil {
			return fmt.Errorf("copy rows of layer %d out: %w", s.Layer, err)
		}
	}
	return nil
}

// scatter copies rows of one section of a page into cells. State is copied whole.
func scatter(groups []group, states States, s pagefile.Section, rows []byte, to destination) error {
	if !s.Kind.PerToken() {
		if err := states.WriteState(int(s.Layer), s.Kind == pagefile.KindState, rows); err != nil {
			return fmt.Errorf("copy the state of layer %d in: %w", s.Layer, err)
		}
		return nil
	}
	g := groupOf(groups, s)
	if s.Kind == pagefile.KindCell || len(to.cells[g]) == 0 {
		return nil
	}
	n, from, cells := int(s.RowBytes), to.from[g], to.cells[g]
	if err := groups[g].WriteRows(int(s.Layer), s.Kind == pagefile.KindV, cells, rows[from*n:(from+len(cells))*n]); err != nil {
		return fmt.Errorf("copy rows of layer %d in: %w", s.Layer, err)
	}
	return nil
}
