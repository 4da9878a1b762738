package main

import (
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Store is the result of store: the page store alone, without a server.
type Store struct {
	PageBytes int64  `json:"page_bytes"` // bytes of rows
	Pages     int    `json:"pages"`
	Cores     int    `json:"cores"`
	Disk      string `json:"disk"`    // program that read and wrote on the other side
	Dropped   string `json:"dropped"` // method of emptying the page cache: "drop_caches" or "fadvise"

	Compared []Comparison `json:"compared"`
	// Compressed is the size of compressed pages, as a share of raw ones.
	Compressed float64 `json:"compressed"`
	// SaveMemory is the largest growth of the heap while pages were saved, garbage included,
	// without the page itself.
	SaveMemory int64 `json:"save_memory_bytes"`

	Lookups []Lookup `json:"lookups"`
	Opened  []Opened `json:"opened"`
}

// Comparison is bytes of rows per second of the store (on), against bytes per second of the
// least possible work (off).
type Comparison struct {
	Name    string     `json:"name"`
	Against string     `json:"against"`
	Rate    SideBySide `json:"rate"`
}

// Lookup is the time to find a whole chain, in seconds per page.
type Lookup struct {
	StoredPages int            `json:"stored_pages"`
	PerPage     measure.Series `json:"per_page"`
}

// Opened is one opening of a store that holds pages. Times are in seconds from
// its beginning.
type Opened struct {
	StoredPages int     `json:"stored_pages"`
	Open        float64 `json:"open"`
	Serving     float64 `json:"serving"` // the first chain was found
	Counted     float64 `json:"counted"` // accounting is exact
	PeakHeap    int64   `json:"peak_heap_bytes"`
	Resident    int64   `json:"resident_bytes"` // growth of resident memory since the opening
}

func (s *Store) print(w io.Writer) {
	var rows [][]string
	for _, c := range s.Compared {
		rows = append(rows, []string{c.Name, rates(c.Rate.On), c.Against, rates(c.Rate.Off), ratio(c.Rate.Ratio)})
	}
	fmt.Fprintf(w, "\nPage store alone, %d pages of %.0f MiB, %d cores, %s; page cache emptied by %s\n\n",
		s.Pages, float64(s.PageBytes)/(1<<20), s.Cores, s.Disk, s.Dropped)
	table.Print(w, []string{"", "store", "against", "", "store/that of each pair"}, rows)
	fmt.Fprintf(w, "\nSaving takes %.1f MiB beside the page. Compressed pages are %s of raw ones.\n",
		float64(s.SaveMemory)/(1<<20), show.Percent(s.Compressed))

	rows = nil
	for _, l := range s.Lookups {
		rows = append(rows, []string{show.Count(l.StoredPages), spread(l.PerPage, func(v float64) string { return fmt.Sprintf("%.2f µs", v*1e6) })})
	}
	fmt.Fprintf(w, "\nLooking %d pages up\n\n", chainPages)
	table.Print(w, []string{"stored pages", "per page"}, rows)

	rows = nil
	for _, o := range s.Opened {
		rows = append(rows, []string{
			show.Count(o.StoredPages), show.Seconds(toDuration(o.Open)), show.Seconds(toDuration(o.Serving)), show.Seconds(toDuration(o.Counted)),
			fmt.Sprintf("%.1f MiB", float64(o.PeakHeap)/(1<<20)), fmt.Sprintf("%.1f MiB", float64(o.Resident)/(1<<20)),
		})
	}
	fmt.Fprint(w, "\nOpening a store\n\n")
	table.Print(w, []string{"stored pages", "open", "serving", "counted", "heap at most", "resident after"}, rows)
}
