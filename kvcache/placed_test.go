package kvcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// placingCache is a fakeCache that checks the rows on disk that PlaceRows names. PlaceRows
// runs on a goroutine that must not end the test: the runner's lock is not held.
type placingCache struct {
	*fakeCache
	t testing.TB

	placed   []int32 // cells, in order
	places   int
	placeErr error

	failWrite func(cells []int32) error
}

var _ RowPlacer = (*placingCache)(nil)

func (c *placingCache) WriteRows(layer int, value bool, cells []int32, src []byte) error {
	if c.failWrite != nil {
		if err := c.failWrite(cells); err != nil {
			return err
		}
	}
	return c.fakeCache.WriteRows(layer, value, cells, src)
}

func (c *placingCache) PlaceRows(cells []int32, file *os.File, layers []int, keyOffsets, valueOffsets []int64) error {
	c.places++
	assert.Equal(c.t, c.RowLayers(), layers)
	if !assert.Len(c.t, keyOffsets, len(layers)) || !assert.Len(c.t, valueOffsets, len(layers)) {
		return errors.New("offsets of other layers")
	}
	for i, layer := range layers {
		c.checkPlaced(cells, file, section{layer, false}, keyOffsets[i])
		c.checkPlaced(cells, file, section{layer, true}, valueOffsets[i])
	}
	c.placed = append(c.placed, cells...)
	return c.placeErr
}

// checkPlaced checks that one section's rows of cells are in file at the offset.
func (c *placingCache) checkPlaced(cells []int32, file *os.File, s section, offset int64) {
	n, _ := c.RowBytes(s.layer, s.value)
	rows := make([]byte, n*len(cells))
	_, err := file.ReadAt(rows, offset)
	assert.NoError(c.t, err)
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	for i, cell := range cells {
		assert.Equal(c.t, c.row(s, cell), rows[i*n:(i+1)*n], "row %d of %d, cell %d, layer %d value %v", i, len(cells), cell, s.layer, s.value)
	}
}

// placedStore is a page store on disk that notes the files it returned.
type placedStore struct {
	*diskstore.Store
	mu    sync.Mutex
	files []*os.File
	asked int
}

func (s *placedStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	err := s.Store.Read(ctx, ref, tokens, layout, into)
	if into.Placed == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if into.Placed.File != nil {
		s.files = append(s.files, into.Placed.File)
	}
	return err
}

// wait returns once n pages have been read.
func (s *placedStore) wait(t testing.TB, n int) {
	assert.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked >= n
	}, 10*time.Second, time.Millisecond)
}

// requireClosed fails unless n files were returned and all are closed.
func (s *placedStore) requireClosed(t testing.TB, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.files, n)
	for _, file := range s.files {
		require.ErrorIs(t, file.Close(), os.ErrClosed)
	}
}

func newPlacedStore(t testing.TB, root string, edit ...func(*diskstore.Options)) *placedStore {
	return &placedStore{Store: newDiskStore(t, root, edit...)}
}

// storedRun returns the root of a store that holds the pages of one request.
func storedRun(t testing.TB, prompt, generated []int32, edit ...func(*diskstore.Options)) string {
	root := filepath.Join(t.TempDir(), "pages")
	r := newFakeRunner(t, newPlacedStore(t, root, edit...), 1, 128, Options{})
	r.run(r.slots[0], prompt, generated, true)
	r.tiered.Close()
	return root
}

func newPlacingRunner(t testing.TB, store Store, opts Options) (*fakeRunner, *placingCache) {
	r := newFakeRunner(t, store, 1, 128, opts)
	cache := &placingCache{fakeCache: r.cache, t: t}
	r.tiered.caches.groups[0].Rows = cache
	return r, cache
}

func TestRestoredRowsArePlaced(t *testing.T) {
	prompt := tokenRange(1, 50)
	root := storedRun(t, prompt, []int32{1, 2, 3}) // six pages, and a tail of five
	for _, held := range []int{0, 1, 7, 8, 13, 16, 47, 48} {
		t.Run(fmt.Sprintf("%d tokens are held", held), func(t *testing.T) {
			store := newPlacedStore(t, root)
			r, cache := newPlacingRunner(t, store, Options{Poison: true})
			if held > 0 {
				r.run(r.slots[0], prompt[:held], nil, false)
			}
			cache.placed = nil
			restored := r.load(r.slots[0], prompt, true)
			require.Equal(t, 49, restored.Held, "one of the two tokens that the tail shares with the prompt")
			require.Equal(t, 49-held, restored.Tokens)
			require.Equal(t, r.tiered.slots.at(0).cells[0][held:49], cache.placed, "every restored position, once and in order")
			cache.requireRows(t, 0, prompt[:49])
			store.requireClosed(t, cache.places)
		})
	}
}

func TestPlacingNeverFailsARestore(t *testing.T) {
	prompt := tokenRange(1, 50)
	root := storedRun(t, prompt, nil)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store := newPlacedStore(t, root)
	r, cache := newPlacingRunner(t, store, Options{Logger: logger})
	cache.placeErr = errors.New("not a whole page")
	require.Equal(t, 49, r.load(r.slots[0], prompt, true).Held)
	require.Equal(t, 7, cache.places)
	cache.requireRows(t, 0, prompt[:49])
	require.Equal(t, 1, strings.Count(log.String(), "not a whole page"))
	store.requireClosed(t, 7)
	r.drain()
	cache.requireRows(t, 0, prompt)
}

func TestCompressedPagesAreNotPlaced(t *testing.T) {
	prompt := tokenRange(1, 32)
	compress := func(o *diskstore.Options) { o.Compress = true }
	root := filepath.Join(t.TempDir(), "pages")
	r, cache := newPlacingRunner(t, newPlacedStore(t, root, compress), Options{})
	// All rows are equal.
	layout, err := pagefile.NewLayout([]pagefile.Section{
		{Layer: 0, Kind: pagefile.KindK, RowBytes: fakeKeyBytes}, {Layer: 0, Kind: pagefile.KindV, RowBytes: fakeValueBytes},
		{Layer: 1, Kind: pagefile.KindK, RowBytes: fakeKeyBytes}, {Layer: 1, Kind: pagefile.KindV, RowBytes: fakeValueBytes},
	}, 8)
	require.NoError(t, err)
	parent := r.tiered.opts.Fingerprint
	for at := 0; at < len(prompt); at += 8 {
		page := &pagefile.Page{Parent: parent, Start: uint32(at), Tokens: prompt[at : at+8], Layout: layout, Payload: make([]byte, layout.Size())}
		require.NoError(t, r.tiered.opts.Store.Put(t.Context(), page))
		parent = page.Key()
	}
	require.Equal(t, 31, r.load(r.slots[0], prompt, true).Held)
	require.Zero(t, cache.places)
}

// A restore that ends early closes the files that were read ahead.
func TestRestoreThatEndsEarlyClosesItsFiles(t *testing.T) {
	prompt := tokenRange(1, 80)
	root := storedRun(t, prompt, nil)
	t.Run("rows cannot be written", func(t *testing.T) {
		store := newPlacedStore(t, root)
		r, cache := newPlacingRunner(t, store, Options{})
		cache.failWrite = func(cells []int32) error {
			if cells[0] == 16 { // in the third page
				store.wait(t, 2)
				return errors.New("no such cell")
			}
			return nil
		}
		require.Equal(t, 16, r.load(r.slots[0], prompt, true).Held)
		require.Len(t, cache.placed, 16, "only pages written as a whole are placed")
		require.GreaterOrEqual(t, len(store.files), 2)
		store.requireClosed(t, len(store.files))
	})
	t.Run("cancelled", func(t *testing.T) {
		store := newPlacedStore(t, root)
		r, cache := newPlacingRunner(t, store, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cache.failWrite = func(cells []int32) error {
			if cells[0] == 16 {
				cancel()
			}
			return nil
		}
		r.mu.Lock()
		restored, err := r.restore(ctx, &r.mu, 0, 0, inputsOf(prompt), func(int) {})
		r.mu.Unlock()
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, restored.Held, len(cache.placed))
		store.requireClosed(t, len(store.files))
	})
	t.Run("damaged", func(t *testing.T) {
		store := newPlacedStore(t, root)
		refs := store.Find(t.Context(), diskstore.Prompt{Parent: pagefile.Key{1}, Tokens: prompt}).Exact
		path := filepath.Join(root, "v1", pagefile.Key{1}.String(), refs[3].Key.String()[:2], refs[3].Key.String()+".kvp")
		require.NoError(t, os.Truncate(path, 4096))
		r, cache := newPlacingRunner(t, store, Options{})
		require.Equal(t, 24, r.load(r.slots[0], prompt, true).Held)
		require.Len(t, cache.placed, 24)
		store.requireClosed(t, 9) // pages after the damaged one were read to find other damage
	})
}

// Neither rows that stay in memory nor placed rows cost an extra operation: the file that
// was read is the file that is returned.
func TestPlacingOpensNothingTwice(t *testing.T) {
	prompt := tokenRange(1, 50)
	root := storedRun(t, prompt, nil)
	restore := func(placing bool) map[vfs.Op]int {
		inj := vfs.Inject(vfs.OS)
		store := newPlacedStore(t, root, func(o *diskstore.Options) { o.FS = inj })
		require.NoError(t, store.Flush(t.Context()))
		r := newFakeRunner(t, store, 1, 128, Options{})
		if placing {
			r.tiered.caches.groups[0].Rows = &placingCache{fakeCache: r.cache, t: t}
		}
		inj.Reset()
		require.Equal(t, 49, r.load(r.slots[0], prompt, true).Held)
		counts := make(map[vfs.Op]int)
		for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpLstat, vfs.OpStat, vfs.OpRead, vfs.OpClose, vfs.OpReadDir, vfs.OpChtimes} {
			counts[op] = inj.Count(op)
		}
		counts["all"] = inj.Count()
		if placing {
			require.Equal(t, 7, store.asked)
		} else {
			require.Zero(t, store.asked)
		}
		return counts
	}
	plain := restore(false)
	require.Equal(t, plain, restore(true))
	require.Equal(t, plain[vfs.OpOpen], plain[vfs.OpClose])
}
