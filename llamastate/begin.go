package llamastate

import (
	"cmp"
	"io"
	"sort"
)

// Beginning is the part of a file before its first rows. It suffices to know where the rows of
// the first cache are, the cache with the rows of all positions.
type Beginning struct {
	// Tokens are the tokens of the file.
	Tokens []int32

	order   []int32 // the cell of each position
	cells   int64
	regions []region
}

// region is the range of one tensor's rows in a file.
type region struct {
	off, size int64
	width     int64 // bytes of a cell in a row of the region: all of its row, or one element
}

// Begin reads the beginning of a file of which a number of bytes are written, and the rest is
// not. It returns nil and the number of bytes that it needs to go on, if these are more. Begin
// returns ErrUnknown for a file with media, and for one that Open would refuse already.
func (s *Shape) Begin(r io.ReaderAt, written int64) (b *Beginning, need int64, err error) {
	if len(s.Caches) == 0 || s.Caches[0].Kind != Full {
		return nil, 0, unknown(0, "its first cache has no rows of all positions")
	}
	p := &parser{r: r, size: written}
	file := &File{}
	total := p.header(file, false)
	if len(file.Media) > 0 || file.Cut {
		p.fail("it has media")
	}
	streams := s.Caches[0].Streams
	c := Cache{Kind: Full, Streams: p.count("number of streams", streams, streams), Ext: s.Caches[0].Ext}
	n := 0
	for range c.Streams {
		if n = int(p.count("number of cells", 0, maxTokens)); n > 0 {
			break
		}
	}
	at := spotsOf(len(file.Tokens), nil)
	_, order := p.cells(n, &c, file, &at, total)
	if p.need > 0 {
		return nil, p.need, nil
	}
	if p.err != nil {
		return nil, 0, p.err
	}
	b = &Beginning{Tokens: file.Tokens, order: order, cells: int64(n)}
	b.place(s, p.off)
	return b, written, nil
}

// place finds the regions of the first cache, whose tensors begin after the cells.
func (b *Beginning) place(s *Shape, off int64) {
	c := &s.Caches[0]
	off += 8
	if s.Version >= 4 {
		off += 8
	}
	for _, tensors := range c.Tensors {
		for _, t := range tensors {
			off += 12 // the head of a tensor, transposed or not
			b.regions = append(b.regions, region{off, t.Row * b.cells, cmp.Or(t.Element, t.Row)})
			off += t.Row * b.cells
		}
	}
}

// Filter passes over the rows of some positions of a file.
type Filter struct {
	regions []region
	cells   int64
	kept    []span // of cells, in order
	Dropped int64  // bytes
}

type span struct{ from, to int64 }

// Without returns the filter that drops the rows of positions start to end of the first cache.
func (b *Beginning) Without(start, end int) *Filter {
	drop := make([]bool, b.cells)
	for _, cell := range b.order[start:end] {
		drop[cell] = true
	}
	f := &Filter{regions: b.regions, cells: b.cells}
	for i := int64(0); i < b.cells; i++ {
		switch n := len(f.kept); {
		case drop[i]:
		case n > 0 && f.kept[n-1].to == i:
			f.kept[n-1].to++
		default:
			f.kept = append(f.kept, span{i, i + 1})
		}
	}
	for _, r := range b.regions {
		f.Dropped += r.size / b.cells * int64(end-start)
	}
	return f
}

// Each calls keep with the parts of some bytes of the file, which begin at an offset, that are not dropped.
func (f *Filter) Each(p []byte, off int64, keep func(p []byte, off int64) error) error {
	end := off + int64(len(p))
	for at := off; at < end; {
		i := sort.Search(len(f.regions), func(i int) bool { return f.regions[i].off+f.regions[i].size > at })
		stop := end
		switch {
		case i == len(f.regions):
		case at < f.regions[i].off:
			stop = min(end, f.regions[i].off)
		default:
			r := &f.regions[i]
			stop = min(end, r.off+r.size)
			if err := f.rows(r, p[at-off:stop-off], at, keep); err != nil {
				return err
			}
			at = stop
			continue
		}
		if err := keep(p[at-off:stop-off], at); err != nil {
			return err
		}
		at = stop
	}
	return nil
}

// rows calls keep with the parts of some bytes of a region that are not dropped.
func (f *Filter) rows(r *region, p []byte, off int64, keep func(p []byte, off int64) error) error {
	row := f.cells * r.width // of the region: all rows, or one column of them
	for end, at := off+int64(len(p)), off; at < end; {
		first := r.off + (at-r.off)/row*row
		stop := min(end, first+row)
		cell := (at - first) / r.width
		i := sort.Search(len(f.kept), func(i int) bool { return f.kept[i].to > cell })
		for ; i < len(f.kept) && first+f.kept[i].from*r.width < stop; i++ {
			from, to := max(at, first+f.kept[i].from*r.width), min(stop, first+f.kept[i].to*r.width)
			if err := keep(p[from-off:to-off], from); err != nil {
				return err
			}
		}
		at = stop
	}
	return nil
}
