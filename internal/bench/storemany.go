package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
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
func (s *storeRun) measureMany(ctx context.Context) (err error) {
	var stores []*tinyStore
	defer func() {
		for _, t := range stores {
			err = errors.Join(err, t.close(), removeAll(t.opt.Local.Root))
		}
	}()
	for _, pages := range s.settings.storePages {
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
	step := s.steps.Step(fmt.Sprintf("store, look %d pages up", chainPages))
	for turn := range s.settings.repetitions * restoresPerRepetition {
		for i := range stores {
			at := (i + turn) % len(stores)
			perPage, err := stores[at].lookUp(ctx, turn)
			if err != nil {
				step.End("", err)
				return err
			}
			s.r.Lookups[at].PerPage.Add(perPage)
		}
	}
	last := s.r.Lookups[len(s.r.Lookups)-1]
	step.End(fmt.Sprintf("%.1f µs per page with %s stored", last.PerPage.Median*1e6, show.Count(last.StoredPages)), nil)
	return nil
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
	step := s.steps.Step(fmt.Sprintf("store, make %s tiny pages", show.Count(t.chains*chainPages)))
	opt := t.opt
	opt.FS = unsynced{vfs.OS}
	store, err := diskstore.Open(ctx, opt)
	if err != nil {
		step.End("", err)
		return nil, err
	}
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: tinyRowBytes}}, tinyTokens)
	if err == nil {
		var g errgroup.Group
		g.SetLimit(4 * runtime.GOMAXPROCS(0))
		for chain := range t.chains {
			g.Go(func() error { return putTiny(ctx, store, chain, layout) })
		}
		err = g.Wait()
	}
	if err = errors.Join(err, store.Close()); err != nil {
		step.End("", err)
		return nil, err
	}
	step.End("", nil)
	return t, nil
}

// putTiny stores one conversation of chainPages pages.
func putTiny(ctx context.Context, store *diskstore.Store, chain int, layout pagefile.Layout) error {
	tokens, payload, parent := tinyChain(chain), make([]byte, layout.Size()), storeFingerprint
	for at := 0; at < len(tokens); at += tinyTokens {
		page := pagefile.Page{Parent: parent, Start: uint32(at), Tokens: tokens[at : at+tinyTokens], Layout: layout, Payload: payload}
		if err := store.Put(ctx, &page); err != nil {
			return err
		}
		parent = page.Key()
	}
	return nil
}

func tinyChain(chain int) []int32 { return storeTokens(chain, chainPages*tinyTokens) }

// openTiny opens a store as a runner does, and waits for its count.
func (s *storeRun) openTiny(ctx context.Context, t *tinyStore) (Opened, error) {
	o := Opened{StoredPages: t.chains * chainPages}
	step := s.steps.Step(fmt.Sprintf("store, open %s pages", show.Count(o.StoredPages)))
	debug.FreeOSMemory()
	resident := residentBytes()
	watch := watchHeap()
	started := time.Now()
	var err error
	if t.store, err = diskstore.Open(ctx, t.opt); err == nil {
		o.Open = time.Since(started).Seconds()
		found := t.store.Find(ctx, diskstore.Prompt{Tokens: tinyChain(t.chains - 1)}).Exact
		o.Serving = time.Since(started).Seconds()
		if len(found) != chainPages {
			err = fmt.Errorf("looking up a chain right after opening: %d of %d pages found", len(found), chainPages)
		}
	}
	if err == nil {
		err = t.store.Flush(ctx)
		o.Counted = time.Since(started).Seconds()
	}
	o.PeakHeap = watch.stop()
	if err != nil {
		step.End("", err)
		return o, err
	}
	debug.FreeOSMemory()
	o.Resident = residentBytes() - resident
	step.End(fmt.Sprintf("serving after %s, counted after %s", show.Seconds(toDuration(o.Serving)), show.Seconds(toDuration(o.Counted))), nil)
	return o, nil
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

func (t *tinyStore) close() error {
	if t.store == nil {
		return nil
	}
	return t.store.Close()
}

// residentBytes is the resident memory of this process, 0 if unknown.
func residentBytes() int64 {
	f, err := os.Open("/proc/self/statm")
	if err != nil {
		return 0
	}
	defer f.Close()
	data, _ := io.ReadAll(f)
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
