package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// Stores of very many pages have tiny pages: real headers, one small section.
const (
	tinyTokens   = 16
	tinyRowBytes = 16
	chainPages   = 512 // pages that one lookup finds
	chainLookups = 64  // lookups per repetition and store
)

// measureMany measures lookups in stores of several sizes, in turns, and the time of opening
// these stores.
func (s *storeRun) measureMany(ctx context.Context, sizes []int) (err error) {
	var stores []*tinyStore
	defer func() {
		for _, t := range stores {
			if t.store != nil {
				err = errors.Join(err, t.store.Close())
			}
			err = errors.Join(err, os.RemoveAll(t.opt.Local.Root))
		}
	}()
	for _, pages := range sizes {
		t, err := s.fillTiny(ctx, pages)
		if err != nil {
			return err
		}
		stores = append(stores, t)
		opened, err := s.openTiny(ctx, t)
		if err != nil {
			return err
		}
		s.r.Opened = append(s.r.Opened, opened)
		s.r.Lookups = append(s.r.Lookups, Lookup{StoredPages: t.chains * chainPages})
	}
	return s.Step(fmt.Sprintf("store, look %d pages up", chainPages), func() (string, error) {
		var sides []func() error
		turn := 0
		for i, t := range stores {
			sides = append(sides, func() error {
				perPage, err := t.lookUp(ctx, turn)
				s.r.Lookups[i].PerPage.Add(perPage)
				return err
			})
		}
		for ; turn < s.repetitions*restoresPerRepetition; turn++ {
			if err := measure.InTurns(turn, sides...); err != nil {
				return "", err
			}
		}
		last := s.r.Lookups[len(s.r.Lookups)-1]
		return fmt.Sprintf("%.1f µs per page with %s stored", last.PerPage.Median*1e6, show.Count(last.StoredPages)), nil
	})
}

// tinyStore is a store of very many pages.
type tinyStore struct {
	opt    diskstore.Options
	chains int
	store  *diskstore.Store
}

// unsynced is the operating system's filesystem without syncs, for a million pages that need
// not survive a crash.
type unsynced struct{ vfs.FS }

func (unsynced) SyncDir(string) error { return nil }

func (u unsynced) Create(name string) (vfs.File, error) {
	f, err := u.FS.Create(name)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error { return nil }

// fillTiny makes a store of at least `pages` pages.
func (s *storeRun) fillTiny(ctx context.Context, pages int) (*tinyStore, error) {
	t := &tinyStore{chains: (pages + chainPages - 1) / chainPages, opt: diskstore.Options{
		Fingerprint: storeFingerprint, PageTokens: tinyTokens,
		Local: diskstore.TierConfig{Root: s.root(strconv.Itoa(pages))},
	}}
	err := s.Step(fmt.Sprintf("store, make %s tiny pages", show.Count(t.chains*chainPages)), func() (string, error) {
		opt := t.opt
		opt.FS = unsynced{vfs.OS}
		store, err := diskstore.Open(ctx, opt)
		if err != nil {
			return "", err
		}
		layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: tinyRowBytes}}, tinyTokens)
		if err == nil {
			var g errgroup.Group
			g.SetLimit(4 * runtime.GOMAXPROCS(0))
			for chain := range t.chains {
				g.Go(func() error { return putPages(ctx, store, tinyChain(chain), layout, make([]byte, layout.Size())) })
			}
			err = g.Wait()
		}
		return "", errors.Join(err, store.Close())
	})
	return t, err
}

// tinyChain is a conversation of chainPages pages.
func tinyChain(chain int) []int32 { return storeTokens(chain, chainPages*tinyTokens) }

// openTiny opens a store as a runner does, and waits for its count.
func (s *storeRun) openTiny(ctx context.Context, t *tinyStore) (o Opened, err error) {
	o.StoredPages = t.chains * chainPages
	err = s.Step(fmt.Sprintf("store, open %s pages", show.Count(o.StoredPages)), func() (string, error) {
		debug.FreeOSMemory()
		growth := watchHeap()
		defer func() { o.PeakHeap = growth() }()
		started := time.Now()
		if t.store, err = diskstore.Open(ctx, t.opt); err != nil {
			return "", err
		}
		o.Open = time.Since(started).Seconds()
		found := t.store.Find(ctx, diskstore.Prompt{Tokens: tinyChain(t.chains - 1)}).Exact
		o.Serving = time.Since(started).Seconds()
		if len(found) != chainPages {
			return "", fmt.Errorf("looking up a chain right after opening: %d of %d pages found", len(found), chainPages)
		}
		err := t.store.Flush(ctx)
		o.Counted = time.Since(started).Seconds()
		return fmt.Sprintf("serving after %s, counted after %s", show.Number(o.Serving, "s"), show.Number(o.Counted, "s")), err
	})
	return o, err
}

// lookUp returns the seconds per page of lookups of whole chains.
func (t *tinyStore) lookUp(ctx context.Context, turn int) (float64, error) {
	var took time.Duration
	for i := range chainLookups {
		tokens := tinyChain((turn*chainLookups + i*37) % t.chains)
		started := time.Now()
		found := t.store.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact
		took += time.Since(started)
		if len(found) != chainPages {
			return 0, fmt.Errorf("looking up a chain: %d of %d pages found", len(found), chainPages)
		}
	}
	return took.Seconds() / (chainLookups * chainPages), nil
}
