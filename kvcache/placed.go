package kvcache

import (
	"os"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// RowPlacer is implemented by caches that move rows out of memory page by page (paged
// attention). Rows known to be in a file already need not be written to the spill file to
// make room.
type RowPlacer interface {
	// PlaceRows says that the rows of cells, just written, are also in a file: layer
	// layers[i]'s K from keyOffsets[i] on and its V from valueOffsets[i] on, one row after
	// the other in the order of cells. Both copies are equal until a row changes in memory;
	// the file never changes. The caller owns the file: an implementation that needs the
	// file after the call duplicates the descriptor.
	//
	// After an error the rows are in memory only. PlaceRows is called as WriteRows is,
	// without the runner's lock.
	PlaceRows(cells []int32, file *os.File, layers []int, keyOffsets, valueOffsets []int64) error
}

// RowHolder is implemented by caches whose rows leave memory page by page.
type RowHolder interface {
	// HeldBytes are the bytes of the rows of cells, in all layers, that are in memory now; ok is false
	// where all of them are. HeldBytes may be called at any time, by any goroutine.
	HeldBytes(cells []int32) (bytes int64, ok bool)
}

var _ Store = (*diskstore.Store)(nil)

// place tells each group that the rows of its cells are also in a page's file.
func (d *reader) place(pg *page) {
	sections := pg.layout.Sections()
	for g := range d.caches.groups {
		var layers []int
		var keys, values []int64
		for i, s := range sections { // K and V of one layer after the other
			if groupOf(d.caches.groups, s) != g || s.Kind == pagefile.KindCell {
				continue
			}
			at := pg.placed.Offsets[i] + int64(pg.dest.from[g])*int64(s.RowBytes)
			if s.Kind == pagefile.KindV {
				values = append(values, at)
				continue
			}
			layers, keys = append(layers, int(s.Layer)), append(keys, at)
		}
		if err := d.caches.groups[g].Rows.(RowPlacer).PlaceRows(pg.dest.cells[g], pg.placed.File, layers, keys, values); err != nil {
			d.notPlaced(err)
		}
	}
}

// notPlaced logs once why stored rows will be written to the spill file again. The second
// write costs time only.
func (d *reader) notPlaced(err error) {
	d.unplaced.Do(func() {
		d.log.Debug("kv tier: a stored page's rows are not used in place", "reason", err)
	})
}
