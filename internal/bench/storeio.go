package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/ollama/ollama/model/input"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/kvcache"
)

// measureSave compares Put with writing and syncing files of the same size.
func (s *storeRun) measureSave(ctx context.Context) error {
	fileBytes := s.r.PageBytes + 2*pagefile.PageAlign // header and footer take about two blocks
	seed := 0
	save := func() (_ float64, err error) {
		seed++
		store, err := s.open(ctx, "save", false, 0)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, store.Close(), os.RemoveAll(s.root("save"))) }()
		growth := watchHeap()
		started := time.Now()
		err = s.put(ctx, store, storeTokens(seed, s.r.Pages*lab.PageTokens))
		took := time.Since(started)
		s.r.SaveMemory = max(s.r.SaveMemory, growth())
		return float64(s.r.PageBytes*int64(s.r.Pages)) / took.Seconds(), err
	}
	write := func() (float64, error) { return s.disk.write(ctx, s.r.Pages, fileBytes) }
	return s.compare("save", "write and fsync", s.repetitions, save, write)
}

// watchHeap returns a function that ends the watch and returns the largest growth of the heap in
// bytes, garbage included.
func watchHeap() (growth func() int64) {
	heap := func() int64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	runtime.GC()
	base := heap()
	most := measure.Most(2*time.Millisecond, heap)
	return func() int64 { return most() - base }
}

// restoresPerRepetition is the number of restores in a repetition: one alone is too short.
const restoresPerRepetition = 5

// measureRead compares a restore of raw pages with plain reads of their files, from the disk
// and from the page cache.
func (s *storeRun) measureRead(ctx context.Context) (err error) {
	l, err := s.newRestorer(ctx, "raw", false, 0)
	if err != nil {
		return err
	}
	defer func() {
		l.tiered.Close()
		err = errors.Join(err, os.RemoveAll(s.root("raw")))
	}()
	n := s.repetitions
	cold := func(read func() (float64, error)) func() (float64, error) {
		return func() (float64, error) {
			if err := s.drop(l.files); err != nil {
				return 0, err
			}
			return read()
		}
	}
	restore := func() (float64, error) { return l.restore(ctx) }
	if s.disk.fio != "" {
		direct := func() (float64, error) { return s.disk.readDirect(ctx, l.files) }
		if err := s.compare("restore, empty page cache, against the disk", "direct read", n, cold(restore), cold(direct)); err != nil {
			return err
		}
	}
	cached := func() (float64, error) { return s.disk.readCached(ctx, l.files, s.r.Cores, fioReadBytes) }
	if err := s.compare("restore, empty page cache", "buffered read", n, cold(restore), cold(cached)); err != nil {
		return err
	}
	if _, err := cached(); err != nil { // all files are in the page cache after this
		return err
	}
	if err := s.compare("restore, full page cache", "buffered read", n*restoresPerRepetition, restore, cached); err != nil {
		return err
	}
	// Plain reads into a small buffer stay in the processor's cache; a restore needs the
	// whole page in memory.
	whole := func() (float64, error) { return s.disk.readCached(ctx, l.files, s.r.Cores, int(s.r.PageBytes)) }
	return s.compare("restore, full page cache, against whole pages", "buffered read", n*restoresPerRepetition, restore, whole)
}

// measureDecode compares a restore of compressed pages with decompression alone.
func (s *storeRun) measureDecode(ctx context.Context) (err error) {
	l, err := s.newRestorer(ctx, "compressed", true, 0)
	if err != nil {
		return err
	}
	defer func() {
		l.tiered.Close()
		err = errors.Join(err, os.RemoveAll(s.root("compressed")))
	}()
	alone, err := s.newDecoding()
	if err != nil {
		return err
	}
	if _, err := l.restore(ctx); err != nil { // all files are in the page cache after this
		return err
	}
	n := s.repetitions * restoresPerRepetition
	files := func() (float64, error) { return l.restore(ctx) }
	if err := s.compare("restore, compressed, full page cache", "decoding alone", n, files, alone.rate); err != nil {
		return err
	}
	warm, err := s.newRestorer(ctx, "compressed", true, 2*l.bytes) // with room to spare
	if err != nil {
		return err
	}
	defer warm.tiered.Close()
	if _, err := warm.restore(ctx); err != nil { // all pages are in memory, decoded, after this
		return err
	}
	return s.compare("restore, decoded pages in memory", "compressed in the page cache", n,
		func() (float64, error) { return warm.restore(ctx) }, files)
}

// restorer restores one conversation into a cache that drops every row.
type restorer struct {
	files  []string
	bytes  int64
	prompt []*input.Input
	tiered *kvcache.TieredCausal
}

// newRestorer stores a conversation that is not stored yet.
func (s *storeRun) newRestorer(ctx context.Context, name string, compress bool, ram int64) (*restorer, error) {
	var store *diskstore.Store
	if err := s.Step("store, write pages, "+name, func() (_ string, err error) {
		if store, err = s.open(ctx, name, compress, ram); err == nil {
			err = s.put(ctx, store, storeTokens(1, s.r.Pages*lab.PageTokens))
		}
		return "", err
	}); err != nil {
		return nil, err
	}
	files, err := lab.Pages(s.root(name))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no page was stored in %s", s.root(name))
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	l := &restorer{files: files, bytes: s.r.PageBytes * int64(s.r.Pages)}
	for _, token := range append(storeTokens(1, s.r.Pages*lab.PageTokens), 0) { // the last token is always computed
		l.prompt = append(l.prompt, &input.Input{Token: token})
	}
	cache := newHostCache(len(l.prompt))
	l.tiered = kvcache.New(cache, []kvcache.Rows{cache}, kvcache.Options{
		Store: store, Fingerprint: storeFingerprint, Layers: storeLayers, PageTokens: lab.PageTokens, AlwaysRestore: true,
	})
	return l, nil
}

// restore returns the bytes of rows per second, from the lookup to the last row.
func (l *restorer) restore(ctx context.Context) (float64, error) {
	var runner sync.Mutex
	runner.Lock()
	defer runner.Unlock()
	got, err := l.tiered.Restore(ctx, &runner, 0, 0, l.prompt, func(int) {})
	if err == nil && got.Tokens != len(l.prompt)-1 {
		err = fmt.Errorf("%d of %d tokens were restored", got.Tokens, len(l.prompt)-1)
	}
	return float64(l.bytes) / got.Took.Seconds(), err
}

// hostCache is a cache in host memory, with one tensor for K and one for V of each layer. The cell
// of a position has the same number.
type hostCache struct {
	ollama.Cache
	tensors [][]byte // K and V of each layer
}

func newHostCache(cells int) *hostCache {
	c := &hostCache{tensors: make([][]byte, 2*storeLayers)}
	for i := range c.tensors {
		c.tensors[i] = make([]byte, cells*storeRowBytes)
		clear(c.tensors[i]) // the memory is there before a restore, as Ollama's is
	}
	return c
}

func (*hostCache) RowLayers() []int {
	layers := make([]int, storeLayers)
	for i := range layers {
		layers[i] = i
	}
	return layers
}

// WriteRows copies runs of cells, as patch 0001 does for host memory.
func (c *hostCache) WriteRows(layer int, value bool, cells []int32, src []byte) error {
	tensor := c.tensors[2*layer]
	if value {
		tensor = c.tensors[2*layer+1]
	}
	for at := 0; at < len(cells); {
		n := 1
		for at+n < len(cells) && cells[at+n] == cells[at]+int32(n) {
			n++
		}
		copy(tensor[int(cells[at])*storeRowBytes:], src[at*storeRowBytes:(at+n)*storeRowBytes])
		at += n
	}
	return nil
}

func (*hostCache) RowBytes(int, bool) (int, error)           { return storeRowBytes, nil }
func (*hostCache) ReadRows(int, bool, []int32, []byte) error { return nil }
func (*hostCache) SynchronizeRows()                          {}
func (*hostCache) BatchCells() []int32                       { return nil }
func (*hostCache) Remove(int, int32, int32) error            { return nil }
func (*hostCache) Close()                                    {}

func (*hostCache) RowWindow() (window, memory int32) { return math.MaxInt32, math.MaxInt32 }

func (*hostCache) ShiftRows([]int32, int32) error { return ollama.ErrNotSupported }
func (*hostCache) ReserveCells(_ int, begin, end int32, _ []int32) ([]int32, error) {
	cells := make([]int32, end-begin)
	for i := range cells {
		cells[i] = begin + int32(i)
	}
	return cells, nil
}

// decoding decompresses the sections of a page, once for each page that is stored.
type decoding struct {
	codec    *pagefile.Codec
	sections []encoded
	rows     int // bytes of a decoded section
	pages    int
}

// encoded is a section as a file has it.
type encoded struct {
	encoding pagefile.Encoding
	bytes    []byte
}

func (s *storeRun) newDecoding() (*decoding, error) {
	codec, err := pagefile.NewCodec()
	if err != nil {
		return nil, err
	}
	d, small := &decoding{codec: codec, rows: storeRowBytes * lab.PageTokens, pages: s.r.Pages}, 0
	for i, section := range s.layout.Sections() {
		id, stored := codec.Encode(s.layout.Rows(s.payload, i), section)
		if id == pagefile.EncodingRaw {
			return nil, errors.New("a section does not become smaller")
		}
		d.sections, small = append(d.sections, encoded{id, stored}), small+len(stored)
	}
	s.r.Compressed = float64(small) / float64(s.r.PageBytes)
	return d, nil
}

// rate decompresses all pages on all cores, and returns the decoded bytes per second.
func (d *decoding) rate() (float64, error) {
	var g errgroup.Group
	cores, sections := runtime.GOMAXPROCS(0), d.pages*len(d.sections)
	started := time.Now()
	for core := range cores {
		g.Go(func() error {
			out := make([]byte, d.rows)
			for i := core; i < sections; i += cores {
				s := d.sections[i%len(d.sections)]
				if err := d.codec.Decode(s.encoding, s.bytes, out); err != nil {
					return fmt.Errorf("decompressing a section: %w", err)
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(d.rows*sections) / time.Since(started).Seconds(), err
}
