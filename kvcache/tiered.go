package kvcache

import (
	"context"
	"log/slog"
	"sync"
	"time"

	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// closeTimeout bounds Close's wait for queued pages.
const closeTimeout = 5 * time.Second

// stateEvery is the number of tokens after which a state is stored within a prompt or an
// answer. A large model's state takes 75 MB.
const stateEvery = 2048

// TieredCausal is a cache whose pages outlive it. TieredCausal implements upstream's Cache
// by forwarding to the wrapped cache. The runner also calls TieredCausal where a batch is
// built and done, and where a request starts and ends.
type TieredCausal struct {
	ollama.Cache // the wrapped cache

	caches  *caches // the wrapped cache's parts
	opts    Options
	store   *disk // opts.Store
	log     *slog.Logger
	queue   *writeQueue
	rates   *rates.Rates
	gate    engine.Gate
	reads   engine.Background
	closeIn time.Duration // closeTimeout, except in tests

	mu       sync.Mutex // guards the fields below
	slots    *slots
	accounts accounts
	why      inquirer
	inFlight inFlight
	device   progress
	sealer   sealer
	stats    Stats
	filling  *filling // nil after the first request

	identity identity
	partial  partialPages
	restorer restorer

	running context.Context // ends when the cache is closed
	stop    context.CancelFunc
	closing sync.Once
}

var _ ollama.Cache = (*TieredCausal)(nil)

// New wraps a cache that consists of the caches in rows. The wrapper owns the store: Close closes both.
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
		store:   &disk{engine.Disk[Store]{Store: opts.Store, Patience: engine.UsualPatience}, usualPatience},
		log:     opts.Logger,
		rates:   opts.Rates,
		closeIn: closeTimeout,
	}
	t.running, t.stop = context.WithCancel(context.Background())
	t.gate = engine.Gate{
		Rates: t.rates, Always: opts.AlwaysRestore, Meter: opts.Meter, Log: t.log, Spawn: t.reads.Spawn, After: time.After,
	}
	t.inFlight.mu = &t.mu
	t.slots = &slots{chain: chain{opts.Fingerprint, opts.PageTokens}, groups: len(t.caches.groups), of: make(map[int]*slot)}
	t.identity = identity{opts.Media, opts.Reach, opts.Backwards}
	t.why = inquirer{
		Inquirer: engine.NewInquirer(opts.Store, opts.Fingerprint, opts.PageTokens, opts.Recents, opts.Meter),
		mu:       &t.mu, running: t.running, reaches: opts.Reach > 0,
	}
	t.accounts = accounts{open: make(map[int]*account), visits: make(visits), rates: t.rates, meter: opts.Meter, why: &t.why}
	t.device = progress{caches: t.caches, clock: newBatchClock()}
	t.store.NoteRead = t.noteRead
	t.queue = newWriteQueue(opts.Store, opts.QueuedBytes, t.wrote, t.healIdle)
	t.sealer = sealer{
		caches: t.caches, device: &t.device, queue: t.queue, slots: t.slots, partial: &t.partial, index: opts.Runs,
		why: &t.why, unstored: opts.Unstored, stats: &t.stats, log: t.log, tailDelay: opts.TailDelay, stateEvery: opts.StateEvery,
	}
	t.restorer = restorer{
		mu: &t.mu, slots: t.slots, inFlight: &t.inFlight, device: &t.device, sealer: &t.sealer, accounts: &t.accounts,
		why: &t.why, stats: &t.stats, caches: t.caches, identity: &t.identity, queue: t.queue,
		find: finder{
			chain: t.slots.chain, store: t.store, queue: t.queue, caches: t.caches, gate: &t.gate, partial: &t.partial,
			index: opts.Runs, reach: opts.Reach, lossy: opts.Lossy,
		},
		reader: reader{store: t.store, caches: t.caches, gate: &t.gate, log: t.log, notFound: t.restorer.notFound},
		gate:   &t.gate, running: t.running,
		remove: t.Remove, meter: opts.Meter, log: t.log, poison: opts.Poison,
		runs: opts.Runs, filled: opts.RunsFilled, runsBy: time.Now().Add(t.store.patience.queue),
	}
	return t
}

// Flush returns when every page and tail of all slots is stored or was just refused. The
// error is the context's or the store's.
func (t *TieredCausal) Flush(ctx context.Context) error {
	if err := t.inFlight.awaitBuilt(ctx); err != nil {
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

// flushMissing queues the missing pages of all slots, whose rows may be lost afterwards, until none is
// missing or pages that failed leave no room. Pages of others may take room for a moment.
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
	t.ratesKept(t.store.saved(ctx, t.store.Patience.Find, t.rates.Save))
	return t.store.flush(ctx)
}

// healed calls healLocked for callers without the lock.
func (t *TieredCausal) healed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.healLocked(true)
}

// Close writes queued pages within closeTimeout, and closes the store and the wrapped cache, once.
func (t *TieredCausal) Close() { t.closing.Do(t.close) }

func (t *TieredCausal) close() {
	ctx, cancel := context.WithTimeout(context.Background(), t.closeIn)
	defer cancel()
	_ = t.flushMissing(ctx) // close reports pages that are left
	if err := t.queue.close(ctx); err != nil {
		t.log.Warn("kv tier: pages were not all stored before the model was unloaded", "error", err)
	}
	t.stop()
	t.awaitFilled()
	t.reads.Wait()
	t.queue.endCopying()
	t.endAccounts()
	t.why.Wait(whyCloseIn)
	t.ratesKept(t.store.saved(ctx, t.store.Patience.Find, t.rates.Close))
	if err := t.store.close(); err != nil {
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
	for _, f := range t.inFlight.built {
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
