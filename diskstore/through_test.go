package diskstore

import (
	"context"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// engine is a Map that several stores use one after another or together. It counts uploads.
type engine struct {
	*tiertest.Map
	mu      sync.Mutex
	created []pagefile.Name
	opened  int // pages
	looked  int // times for pages
	fail    error
	create  func(context.Context) // runs before an upload; nil for nothing
}

func newEngine() *engine { return &engine{Map: tiertest.NewMap()} }

func (e *engine) Close() error { return nil }

func (e *engine) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	e.mu.Lock()
	fail, create := e.fail, e.create
	if fail == nil && name.Class != pagefile.ClassManifest {
		e.created = append(e.created, name)
	}
	e.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	if create != nil && name.Class != pagefile.ClassManifest {
		create(ctx)
	}
	return e.Map.Create(ctx, name)
}

func (e *engine) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	if name.Class != pagefile.ClassManifest {
		e.mu.Lock()
		e.opened++
		e.mu.Unlock()
	}
	return e.Map.Open(ctx, name, anew)
}

func (e *engine) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	if names[0].Class != pagefile.ClassManifest {
		e.mu.Lock()
		e.looked++
		e.mu.Unlock()
	}
	return e.Map.Find(ctx, names, leading)
}

func (e *engine) fails(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = err
}

func (e *engine) uploads() []pagefile.Name {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.created)
}

// withEngine adds a remote tier to which pages are written through.
func withEngine(e *engine) func(*Options) {
	return func(o *Options) {
		o.RemoteTier, o.ThroughPerDay = e, 1<<40
		o.RemoteTimeout, o.ReadTimeout = time.Minute, time.Minute
	}
}

func throughNames(s *Store, pages []*pagefile.Page) (names []pagefile.Name) {
	for _, p := range pages {
		name := s.pages.Page(p.Key())
		if len(p.Tokens) < testTokens {
			name = s.pages.Tail(p.Key())
		}
		names = append(names, name)
	}
	return names
}

// TestPagesAreWrittenThrough: in the order of the chain, once, and not again when they move down; another
// machine reads them and writes nothing.
func TestPagesAreWrittenThrough(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, withEngine(e))
	tokens := prompt(1, 5*testTokens+3)
	pages := putChain(t, s, tokens)
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, throughNames(s, pages), e.uploads())
	st := s.Stats()
	require.EqualValues(t, len(pages), st.ThroughPages)
	require.Equal(t, st.WroteBytes, st.ThroughBytes)
	require.Zero(t, st.ThroughWaiting+int(st.ThroughFailed))

	info, err := tier.Stat(ctx, s.disk, s.pages.Page(pages[4].Key()))
	require.NoError(t, err)
	evictPage(t, s, info)
	require.EqualValues(t, 1, s.Stats().Demoted)

	other, _ := openNew(t, withEngine(e))
	readChain(t, other, tokens, len(tokens))
	require.NoError(t, other.Flush(ctx))
	require.Len(t, e.uploads(), len(pages))
	require.Zero(t, other.Stats().ThroughPages)
}

// TestWithoutWritingThrough: pages reach the remote tier only when they leave the local one.
func TestWithoutWritingThrough(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, withEngine(e), func(o *Options) { o.ThroughPerDay = 0 })
	putPrompt(t, s, 1, 3*testTokens)
	require.NoError(t, s.Flush(ctx))
	require.Empty(t, e.uploads())
}

// TestTheNextProcessWritesThrough what a process left that could not reach the engine, the chain's
// beginning first.
func TestTheNextProcessWritesThrough(t *testing.T) {
	e := newEngine()
	o := testOptions(t, withEngine(e))
	s := open(t, o)
	e.fails(tier.ErrTierTimeout)
	pages := putChain(t, s, prompt(1, 4*testTokens))
	require.NoError(t, s.Flush(ctx))
	require.Positive(t, s.Stats().ThroughFailed)
	require.NoError(t, s.Close())
	require.Empty(t, e.uploads())
	e.fails(nil)
	s = reopen(t, s, o)
	require.Equal(t, throughNames(s, pages), e.uploads())
	s = reopen(t, s, o)
	require.NoError(t, s.Flush(ctx))
	require.Len(t, e.uploads(), len(pages))
}

// TestRefusedPagesWait: an engine that refuses all writes for long gets the pages later, also from the next process.
func TestRefusedPagesWait(t *testing.T) {
	e := newEngine()
	o := testOptions(t, withEngine(e))
	s := open(t, o)
	e.fails(fs.ErrPermission)
	var pages []*pagefile.Page
	for conversation := range 10 {
		pages = append(pages, putChain(t, s, prompt(conversation, testTokens))...)
		require.NoError(t, s.Flush(ctx))
	}
	require.GreaterOrEqual(t, s.Stats().ThroughFailed, uint64(len(pages)))
	require.Equal(t, len(pages), s.Stats().ThroughWaiting)
	e.fails(nil)
	s = reopen(t, s, o)
	require.NoError(t, s.Flush(ctx))
	require.ElementsMatch(t, throughNames(s, pages), e.uploads())
}

// TestAFullEngine: the mark up to which nothing waits does not pass pages that were given up.
func TestAFullEngine(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, withEngine(e))
	e.fails(tier.ErrNoSpace)
	pages := putChain(t, s, prompt(1, testTokens))
	require.NoError(t, s.Flush(ctx))
	manifest := pagefile.Name{Fingerprint: s.pages.Exact, Class: pagefile.ClassManifest}
	before, err := tier.Stat(ctx, s.disk, manifest)
	require.NoError(t, err)
	for s.Stats().ThroughWaiting > 0 {
		s.through.Add(s.pages.Page(pages[0].Key()))
		require.NoError(t, s.Flush(ctx))
	}
	after, err := tier.Stat(ctx, s.disk, manifest)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestTheEngineComesBack: a later page takes those along that wait.
func TestTheEngineComesBack(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, withEngine(e))
	e.fails(tier.ErrTierTimeout)
	pages := putChain(t, s, prompt(1, 3*testTokens))
	require.NoError(t, s.Flush(ctx))
	require.Positive(t, s.Stats().ThroughWaiting)
	e.fails(nil)
	askAgain(s)
	s.guard.Breaker.Success()
	pages = append(pages, putChain(t, s, prompt(2, testTokens))...)
	require.NoError(t, s.Flush(ctx))
	require.Subset(t, throughNames(s, pages), e.uploads())
	require.Contains(t, e.uploads(), s.pages.Page(pages[3].Key()))
	require.Zero(t, s.Stats().ThroughWaiting)
}

// TestAnEngineThatHangsHoldsUpNothing: Put returns, Flush ends with its context, and Close in time.
func TestAnEngineThatHangsHoldsUpNothing(t *testing.T) {
	e := newEngine()
	begun, gate := make(chan struct{}, 1), make(chan struct{})
	e.create = func(context.Context) { begun <- struct{}{}; <-gate }
	s, _ := openNew(t, withEngine(e))
	defer close(gate)
	putPrompt(t, s, 1, 4*testTokens)
	<-begun
	putPrompt(t, s, 2, testTokens)
	limited, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, s.Flush(limited), context.Canceled)
	require.NoError(t, s.Close())
}

// TestRemovedPagesDoNotComeBack: a person removes a page while it is sent, and one that waits.
func TestRemovedPagesDoNotComeBack(t *testing.T) {
	e := newEngine()
	s, o := openNew(t, withEngine(e))
	putPrompt(t, s, 9, testTokens)
	require.NoError(t, s.Flush(ctx))
	begun, gate := make(chan struct{}, 9), make(chan struct{})
	e.mu.Lock()
	e.create = func(context.Context) { begun <- struct{}{}; <-gate }
	e.mu.Unlock()
	putPrompt(t, s, 1, 3*testTokens)
	<-begun
	r, err := OpenRoot(ctx, RootOptions{Local: o.Local, RemoteTier: e, FS: quickFS})
	require.NoError(t, err)
	report, err := r.GC(ctx, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
	require.NoError(t, err)
	require.NoError(t, report.RemoteErr)
	require.NoError(t, r.Close())
	close(gate)
	require.NoError(t, s.Flush(ctx))
	require.Empty(t, listAll(t, s.remote))
	require.Len(t, e.uploads(), 2)
	st := s.Stats()
	require.EqualValues(t, 1, st.ThroughPages)
	require.Zero(t, st.ThroughWaiting+int(st.ThroughFailed))
}

// TestADamagedPageIsNotWrittenThrough: the copy checks every byte.
func TestADamagedPageIsNotWrittenThrough(t *testing.T) {
	e := newEngine()
	s, o := openNew(t, withEngine(e))
	e.fails(tier.ErrTierTimeout)
	pages := putChain(t, s, prompt(1, 2*testTokens))
	require.NoError(t, s.Flush(ctx))
	flipAt(t, filePath(o.Local.Root, s.pages.Page(pages[0].Key())), -200)
	e.fails(nil)
	s.guard.Breaker.Success()
	s.through.Add(s.pages.Page(pages[0].Key()))
	s.through.Add(s.pages.Page(pages[1].Key()))
	require.NoError(t, s.Flush(ctx))
	for _, info := range listAll(t, s.remote) {
		require.NotEqual(t, pages[0].Key(), info.Key)
	}
	require.EqualValues(t, 1, s.Stats().LocalQuarantined)
	require.Zero(t, s.Stats().ThroughWaiting)
}

// TestBoundsOfWritingThrough: the bytes of a day, after which the engine is not asked, and the names in memory.
func TestBoundsOfWritingThrough(t *testing.T) {
	e := newEngine()
	s, _ := openNew(t, withEngine(e), func(o *Options) { o.ThroughPerDay = 100 << 10 })
	putPrompt(t, s, 1, 8*testTokens)
	require.NoError(t, s.Flush(ctx))
	st := s.Stats()
	require.LessOrEqual(t, st.RemoteWritten, int64(100<<10))
	require.Positive(t, st.ThroughPages)
	require.EqualValues(t, 8, int(st.ThroughPages)+st.ThroughWaiting)
	looked := e.looked
	putPrompt(t, s, 2, 8*testTokens)
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, looked, e.looked)
	for i := range 2 * move.ThroughMost {
		s.through.Add(s.pages.Page(pagefile.Key{byte(i), byte(i >> 8)}))
	}
	require.LessOrEqual(t, s.Stats().ThroughWaiting, move.ThroughMost)
}

// TestTwoStoresWithOneBacklog: two hosts have the same pages for an engine that has lost them. They share the work.
func TestTwoStoresWithOneBacklog(t *testing.T) {
	e := newEngine()
	gate := make(chan struct{})
	var stores []*Store
	var pages []*pagefile.Page
	for range 2 {
		s, _ := openNew(t, withEngine(e))
		s.throughQueue.Submit("another page", func(context.Context) { <-gate })
		pages = nil
		for conversation := range 10 {
			pages = append(pages, putChain(t, s, prompt(conversation, 4*testTokens))...)
		}
		stores = append(stores, s)
	}
	close(gate)
	for _, s := range stores {
		require.NoError(t, s.Flush(ctx))
	}
	require.Subset(t, e.uploads(), throughNames(stores[0], pages))
	require.Less(t, len(e.uploads()), 2*len(pages))
	t.Logf("%d uploads of %d pages", len(e.uploads()), len(pages))
}

// TestTwoStoresWriteOnce: what another host has written while a page waits is not sent again.
func TestTwoStoresWriteOnce(t *testing.T) {
	e := newEngine()
	first, _ := openNew(t, withEngine(e))
	second, _ := openNew(t, withEngine(e))
	gate := make(chan struct{})
	second.throughQueue.Submit("another page", func(context.Context) { <-gate })
	pages := putChain(t, second, prompt(1, 3*testTokens))
	putChain(t, first, prompt(1, 3*testTokens))
	require.NoError(t, first.Flush(ctx))
	opened := e.opened
	close(gate)
	require.NoError(t, second.Flush(ctx))
	require.Equal(t, opened, e.opened, "looked up, not read")
	require.Equal(t, throughNames(second, pages), e.uploads())
}
