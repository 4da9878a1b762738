package kvcache

import (
	"context"
	"log/slog"
	"sync"
	"time"

	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Store keeps pages. [diskstore.Store] implements Store. Methods may be called from several
// goroutines.
type Store interface {
	Put(ctx context.Context, page *pagefile.Page) error
	PutIfRoom(ctx context.Context, page *pagefile.Page) error
	Has(key pagefile.Key) bool
	ChainFrom(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref
	ChainLossy(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref
	AnyOf(ctx context.Context, keys []pagefile.Key) (key pagefile.Key, found bool)
	TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref
	LayoutOf(ctx context.Context, ref diskstore.Ref) (pagefile.Layout, error)
	Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) error
	ReadSections(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, use diskstore.Use, how ...diskstore.ReadOption) error
	ReadPlaced(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, use diskstore.Use, how ...diskstore.ReadOption) (*diskstore.Placed, error)
	Flush(ctx context.Context) error
	Close() error
}

// Options configure a [TieredCausal]. Store, Fingerprint and Layers are required.
type Options struct {
	Store Store
	// Fingerprint identifies the model and engine that pages belong to, and is the parent
	// key of a first page.
	Fingerprint pagefile.Key
	// Layers is the number of layers with K/V, in all caches.
	Layers int
	// PageTokens is the number of tokens of a page; zero means
	// [diskstore.DefaultPageTokens]. A page of 256 tokens of an 8B model has 32 MiB: large
	// enough for sequential reads, small enough that little is computed again where two
	// prompts part. A cache that drops positions must keep at least PageTokens.
	PageTokens int
	// States is the state of recurrent layers, nil in a model without any.
	States States
	// StateEvery is the number of tokens after which a state is stored within a prompt or an
	// answer; zero means 2048.
	StateEvery int
	// Media gives images and sounds an identity that outlives the process. Without Media,
	// rows from the first image or sound on are not stored.
	Media MediaDigest
	// Backwards: an input without identity also changes earlier rows of its batch.
	Backwards bool
	// Reach is the number of tokens of a batch in a model in which rows of an image attend to all
	// of their batch, also to the text behind the image. Zero means that no row attends to later
	// text than that of its own span.
	Reach int
	// Rates has the measured costs of computing and reading, which decide whether pages are
	// read. Nil means no costs are known, and measurements are not kept. The wrapper saves
	// Rates.
	Rates *rates.Rates
	// Runs is an index of text that can be reused at other positions. Nil means that only
	// text with the same beginning is reused. The wrapper adds the pages that it stores and
	// reads.
	Runs *runs.Index
	// Lossy also restores lossy pages, where they reach a page further than exact ones. Rows from
	// the first lossy page on, and rows computed after them, are not stored. Without Lossy no
	// lossy page is looked up, and in a model with windows or state none ever is.
	Lossy bool
	// TailDelay is the time after a request's end at which its tail is stored, if the slot still
	// has it: a request that goes on meanwhile makes the tail longer. Rows that leave the cache
	// are stored at once, and so are the tails of models with windows or state.
	TailDelay time.Duration
	// RunsFilled is closed when Runs has the pages of earlier processes. Requests wait for it
	// until two seconds after New. Nil means that Runs is filled.
	RunsFilled <-chan struct{}
	// Latest brings, once, the text of the latest conversation: [TieredCausal.FillSlot] restores
	// it while the model loads. Nil means none.
	Latest <-chan []int32
	// Poison fills the cells a restore has taken with NaN bytes before rows are written,
	// to show that none of them is read too early. For tests.
	Poison bool
	// AlwaysRestore reads pages even where computing them seems quicker. For tests.
	AlwaysRestore bool
	// QueuedBytes bounds the memory of rows that wait to be written after they have left the
	// cache; zero means 1 GiB. Rows that are still in the cache, and rows whose writing
	// failed, are queued up to a quarter each. The first of the rows in a queue may be larger.
	// Buffers for copies out of a device are part of it, up to a sixteenth each.
	QueuedBytes int64
	// Meter counts prompts and pages. Nil counts nothing.
	Meter *telemetry.Meter
	// Recents are the latest prompts, for the cause of a miss. Nil explains none. Prompts are then
	// counted when they are explained, a little later.
	Recents *why.Recents
	// Unstored is told of rows that should have been stored and do not reach the store; the store
	// tells of its own failures. Nil means that only Logger is.
	Unstored *unstored.Watch
	// Logger receives log lines; nil means slog's default.
	Logger *slog.Logger
}

// closeTimeout bounds Close's wait for queued pages.
const closeTimeout = 5 * time.Second

// TieredCausal is a cache whose pages outlive it. TieredCausal implements upstream's Cache
// by forwarding to the wrapped cache. The runner also calls TieredCausal where a batch is
// built and done, and where a request starts and ends.
type TieredCausal struct {
	ollama.Cache // the wrapped cache

	caches  *caches // the wrapped cache's parts
	opts    Options
	store   *steadyStore // opts.Store
	log     *slog.Logger
	queue   *writeQueue
	rates   *rates.Rates
	closeIn time.Duration // closeTimeout, except in tests

	mu       sync.Mutex // guards the fields below
	slots    *slots
	accounts accounts
	why      inquirer
	flights  flights
	device   progress
	sealer   sealer
	stats    Stats
	filling  *filling // nil after the first request

	identity identity
	thin     thinPages
	reader   reader
	find     finder
	restorer restorer

	running context.Context // ends when the cache is closed
	stop    context.CancelFunc
	closing sync.Once
}

var _ ollama.Cache = (*TieredCausal)(nil)

// New wraps a cache that consists of the caches in rows. The wrapper owns the store: Close
// closes both.
func New(cache ollama.Cache, rows []Rows, opts Options) *TieredCausal {
	if opts.PageTokens == 0 {
		opts.PageTokens = diskstore.DefaultPageTokens
	}
	if opts.QueuedBytes == 0 {
		opts.QueuedBytes = queuedBytes
	}
	if opts.StateEvery <= 0 {
		opts.StateEvery = stateEvery
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Rates == nil {
		opts.Rates = rates.New()
	}
	if opts.Unstored == nil {
		opts.Unstored = unstored.New(opts.Logger, opts.Meter)
	}
	t := &TieredCausal{
		Cache:   cache,
		caches:  &caches{groups: groupsOf(rows), states: opts.States, layers: opts.Layers},
		opts:    opts,
		store:   &steadyStore{Store: opts.Store, patience: usualPatience},
		log:     opts.Logger,
		rates:   opts.Rates,
		closeIn: closeTimeout,
	}
	t.running, t.stop = context.WithCancel(context.Background())
	t.flights.mu = &t.mu
	t.slots = &slots{chain: chain{opts.Fingerprint, opts.PageTokens}, groups: len(t.caches.groups), of: make(map[int]*slot)}
	t.identity = identity{opts.Media, opts.Reach, opts.Backwards}
	t.why = newInquirer(&t.mu, t.running, &opts)
	t.accounts = accounts{open: make(map[int]*account), visits: make(visits), rates: t.rates, meter: opts.Meter, why: &t.why}
	t.device = progress{caches: t.caches, clock: newBatchClock()}
	t.store.noteRead = t.noteRead
	t.queue = newWriteQueue(t.store, opts.QueuedBytes, t.wrote, t.healIdle)
	t.sealer = sealer{
		caches: t.caches, device: &t.device, queue: t.queue, slots: t.slots, thin: &t.thin, index: opts.Runs,
		why: &t.why, unstored: opts.Unstored, stats: &t.stats, log: t.log, tailDelay: opts.TailDelay, stateEvery: opts.StateEvery,
	}
	t.reader = reader{store: t.store, caches: t.caches, rates: t.rates, log: t.log, notFound: t.restorer.notFound, running: t.running}
	t.find = finder{
		chain: t.slots.chain, store: t.store, queue: t.queue, caches: t.caches, rates: t.rates, thin: &t.thin,
		index: opts.Runs, reach: opts.Reach, lossy: opts.Lossy, always: opts.AlwaysRestore,
	}
	t.restorer = restorer{
		mu: &t.mu, slots: t.slots, flights: &t.flights, device: &t.device, sealer: &t.sealer, accounts: &t.accounts,
		why: &t.why, stats: &t.stats, caches: t.caches, identity: &t.identity, find: &t.find, reader: &t.reader,
		remove: t.Remove, meter: opts.Meter, log: t.log, after: time.After, poison: opts.Poison,
		runs: opts.Runs, filled: opts.RunsFilled, runsBy: time.Now().Add(t.store.patience.queue),
	}
	return t
}

// PageTokens is the number of tokens of a page.
func (t *TieredCausal) PageTokens() int { return t.opts.PageTokens }

// Flush returns when every page and tail of all slots is stored or was just refused. The
// error is the context's or the store's.
func (t *TieredCausal) Flush(ctx context.Context) error {
	if err := t.flights.awaitBuilt(ctx); err != nil {
		return err
	}
	if err := t.queue.wait(ctx); err != nil {
		return err
	}
	if err := t.flushMissing(ctx); err != nil {
		return err
	}
	t.why.Wait(whyFlushIn) // a flush also asks for a report, and the process may be killed afterwards
	return t.flushStore(ctx)
}

// flushMissing queues the missing pages of all slots, whose rows may be lost afterwards, until
// none is missing, or until pages that failed leave no room. Pages that others queue meanwhile
// may take the room for a moment.
func (t *TieredCausal) flushMissing(ctx context.Context) error {
	t.queue.retry()
	if err := t.queue.wait(ctx); err != nil {
		return err // a state that anew queues would take the room of pages that failed before
	}
	t.anew()
	for attempts := int64(-1); ; {
		if err := t.queue.wait(ctx); err != nil {
			return err
		}
		if t.healed() {
			continue
		}
		refused, now := t.queue.refusals()
		if !refused || now == attempts {
			return nil
		}
		attempts = now
	}
}

// FlushSealed is Flush for a runner that ends because a batch failed: no batch will land, so
// FlushSealed only stores pages that are sealed already.
func (t *TieredCausal) FlushSealed(ctx context.Context) error {
	t.queue.retry()
	if err := t.queue.wait(ctx); err != nil {
		return err
	}
	return t.flushStore(ctx)
}

func (t *TieredCausal) flushStore(ctx context.Context) error {
	t.ratesKept(t.store.saved(ctx, t.store.patience.find, t.rates.Save))
	return t.store.Flush(ctx)
}

// healed calls healLocked for callers without the lock.
func (t *TieredCausal) healed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.healLocked(true)
}

// Close writes queued pages within closeTimeout, and closes the store and the wrapped cache,
// once.
func (t *TieredCausal) Close() { t.closing.Do(t.close) }

func (t *TieredCausal) close() {
	ctx, cancel := context.WithTimeout(context.Background(), t.closeIn)
	defer cancel()
	_ = t.flushMissing(ctx) // close reports pages that are left
	if err := t.queue.close(ctx); err != nil {
		t.log.Warn("kv tier: pages were not all stored before the model was unloaded", "error", err)
	}
	t.stop()
	t.reader.probes.Wait()
	t.awaitFilled()
	t.queue.endCopying()
	t.endAccounts()
	t.why.Wait(whyCloseIn)
	t.ratesKept(t.store.saved(ctx, t.store.patience.find, t.rates.Close))
	if err := t.store.Close(); err != nil {
		t.log.Warn("kv tier: closing the page store", "error", err)
	}
	t.Cache.Close()
}

// endAccounts closes all accounts: no batch will land any more.
func (t *TieredCausal) endAccounts() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for seq := range t.accounts.open {
		t.accounts.end(seq)
	}
	for _, f := range t.flights.built {
		for _, a := range f.prompts {
			t.accounts.record(a, 0)
		}
		f.prompts = nil
	}
}

// ratesKept logs an error of saving the measured costs.
func (t *TieredCausal) ratesKept(err error) {
	if err != nil {
		t.log.Debug("kv tier: rates are not remembered", "error", err)
	}
}
