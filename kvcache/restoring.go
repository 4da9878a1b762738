package kvcache

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/telemetry"
)

// unlocked calls f without the runner's lock, which is held. The runner's lock is released here only.
func unlocked(lock sync.Locker, f func()) {
	lock.Unlock()
	defer lock.Lock()
	f()
}

// restorer has all that restores use. mu is TieredCausal.mu, which guards slots, inFlight, device,
// sealer, accounts, why and stats.
type restorer struct {
	mu       *sync.Mutex
	slots    *slots
	inFlight *inFlight
	device   *progress
	sealer   *sealer
	accounts *accounts
	why      *inquirer
	stats    *Stats

	caches   *caches
	identity *identity
	gate     *engine.Gate
	running  context.Context // of probes; ends when the cache is closed
	find     finder
	reader   reader
	queue    *writeQueue
	remove   func(seq int, begin, end int32) error // TieredCausal.Remove
	meter    *telemetry.Meter
	log      *slog.Logger
	poison   bool // see Options.Poison

	runs   *runs.Index     // of text that may move; nil: none is reused
	filled <-chan struct{} // closed when runs has the pages of earlier processes
	runsBy time.Time       // no request waits longer for filled
	noRuns atomic.Bool     // the model cannot shift
}

// restoring is one restore. The runner's lock is held in all of its methods; functions
// passed to unlocked run without the lock.
type restoring struct {
	*restorer
	lock   sync.Locker
	hold   func(tokens int)
	seq    int
	prompt prompt // the inputs before the first without identity
	limit  int    // number of the prompt's tokens that may be restored
	ahead  bool   // no request wants the prompt yet
	result Restored
	from   engine.Origins // of the tokens that the slot holds
}

// unlocked tells the runner how many tokens the slot holds, and calls f without the runner's lock.
func (r *restoring) unlocked(f func()) {
	r.hold(r.result.Held)
	unlocked(r.lock, f)
}

// clear empties the slot.
func (r *restoring) clear() {
	_ = r.remove(r.seq, 0, math.MaxInt32) // freeing to the end of a sequence cannot fail
	r.result, r.from = Restored{}, nil
}

// cut notes that the slot is about to keep only the rows before a position. Rows that came while the
// model loaded may be among the others: those of lossy pages are replaced.
func (r *restoring) cut(base int) {
	replaced := max(0, r.result.Early-base)
	r.result.Held, r.result.Tokens, r.result.Early = base, r.result.Tokens-replaced, r.result.Early-replaced
	r.from = r.from.Cut(base)
	r.result.Lossy = r.from.Lossy()
}

// Restored is the result of a restore.
type Restored struct {
	// Held counts the leading tokens of the prompt that the slot holds now.
	Held int
	// Tokens counts the tokens that came from the store.
	Tokens int
	// Shifted counts the restored tokens that were computed at another position, with other
	// text before them. Rows computed after shifted rows are not exact, and are not stored.
	Shifted int
	// Lossy counts the restored tokens from the first lossy page on, without shifted ones. These
	// rows and rows computed after them are not exact, and are not stored.
	Lossy int
	// Early counts the restored tokens that came while the model loaded.
	Early int
	// Bytes estimates the bytes read from the store.
	Bytes int64
	// Tiers names the tiers that were read, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}
