package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// A page of 256 tokens of an 8B model: 32 layers of 8 KV heads of 128, in f16.
const (
	storeLayers   = 32
	storeRowBytes = 2048
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
	Name    string             `json:"name"`
	Against string             `json:"against"`
	Rate    measure.SideBySide `json:"rate" unit:"B/s"`
}

// Lookup is the time to find a whole chain, in seconds per page.
type Lookup struct {
	StoredPages int            `json:"stored_pages"`
	PerPage     measure.Series `json:"per_page" unit:"s"`
}

// Opened is one opening of a store that holds pages. Times are in seconds from
// its beginning.
type Opened struct {
	StoredPages int     `json:"stored_pages"`
	Open        float64 `json:"open" unit:"s"`
	Serving     float64 `json:"serving" unit:"s"` // the first chain was found
	Counted     float64 `json:"counted" unit:"s"` // accounting is exact
	PeakHeap    int64   `json:"peak_heap_bytes"`
}

// storeRun measures the page store alone: no server, no model.
type storeRun struct {
	*rig
	r       *Store
	disk    disk
	layout  pagefile.Layout
	payload []byte
}

func measureStore(ctx context.Context, r *rig) (any, error) {
	s := storeRun{rig: r, disk: newDisk(r.dir)}
	var err error
	if s.layout, err = pagefile.NewLayout(storeSections(), lab.PageTokens); err != nil {
		return nil, err
	}
	s.payload = likeRows(s.layout.Size())
	s.r = &Store{
		PageBytes: int64(s.layout.Size()), Pages: max(2, r.storeMiB<<20/s.layout.Size()),
		Cores: runtime.GOMAXPROCS(0), Disk: s.disk.version,
	}
	for _, measure := range []func(context.Context) error{s.measureSave, s.measureRead, s.measureDecode} {
		if err := measure(ctx); err != nil {
			return nil, err
		}
	}
	return s.r, s.measureMany(ctx, r.storePages)
}

func storeSections() (sections []pagefile.Section) {
	for layer := range uint16(storeLayers) {
		sections = append(sections,
			pagefile.Section{Layer: layer, Kind: pagefile.KindK, RowBytes: storeRowBytes},
			pagefile.Section{Layer: layer, Kind: pagefile.KindV, RowBytes: storeRowBytes})
	}
	return sections
}

// likeRows returns bytes that compress as f16 rows do: every second byte, with sign and
// exponent, takes few values.
func likeRows(n int) []byte {
	rows := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range rows {
		rows[i] = byte(rng.Uint32())
		if i%2 == 1 {
			rows[i] = 0x38 + rows[i]&7
		}
	}
	return rows
}

// storeTokens returns n tokens whose first one differs between seeds.
func storeTokens(seed, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(seed<<16 + i)
	}
	return tokens
}

var storeFingerprint = pagefile.Key{0: 0xbe, 1: 0xac}

func (s *storeRun) root(name string) string { return filepath.Join(s.dir, "store-"+name) }

// open opens a store of full-size pages.
func (s *storeRun) open(ctx context.Context, name string, compress bool, ram int64) (*diskstore.Store, error) {
	store, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: storeFingerprint, PageTokens: lab.PageTokens, Compress: compress,
		Local: diskstore.TierConfig{Root: s.root(name)}, RAM: diskstore.RAMConfig{BudgetBytes: ram},
	})
	if err != nil {
		return nil, err
	}
	return store, store.Flush(ctx)
}

// put stores the pages of a conversation.
func (s *storeRun) put(ctx context.Context, store *diskstore.Store, tokens []int32) error {
	return putPages(ctx, store, tokens, s.layout, s.payload)
}

// putPages stores pages of a conversation, which all have the same rows.
func putPages(ctx context.Context, store *diskstore.Store, tokens []int32, layout pagefile.Layout, rows []byte) error {
	parent, start := storeFingerprint, 0
	for of := range slices.Chunk(tokens, layout.Tokens()) {
		page := pagefile.Page{Parent: parent, Start: uint32(start), Tokens: of, Layout: layout, Payload: rows}
		if err := store.Put(ctx, &page); err != nil {
			return err
		}
		parent, start = page.Key(), start+len(of)
	}
	return nil
}

// drop empties the page cache of files, and records the method.
func (s *storeRun) drop(paths []string) error {
	if s.canDrop {
		s.r.Dropped = "drop_caches"
		return measure.DropCaches()
	}
	if runtime.GOOS != "linux" {
		return errors.New("taking files out of the page cache: only done on Linux")
	}
	s.r.Dropped = "fadvise"
	for _, path := range paths {
		if err := vfs.OS.Uncache(path); err != nil {
			return err
		}
	}
	return nil
}

// compare measures both sides in turns.
func (s *storeRun) compare(name, against string, repetitions int, ours, theirs func() (float64, error)) error {
	c := Comparison{Name: name, Against: against}
	err := s.Step("store, "+name, func() (string, error) {
		for range repetitions {
			if err := c.Rate.Measure(theirs, ours); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%s, %.2f of %s", show.Rate(c.Rate.On.Median), c.Rate.Ratio.Median, against), nil
	})
	s.r.Compared = append(s.r.Compared, c)
	return err
}
