package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// errStopped reports a collector that ends.
var errStopped = errors.New("the collector ends")

// round is one state, and the write before it. All readers that came before its beginning share
// it, so that many of them cost one write.
type round struct {
	done   chan struct{}
	wanted bool // some reader waits for the state

	data     []byte // the state without Words, encoded
	err      error  // of encoding
	writeErr error
}

// writer writes the file, and makes the states that are shown after it. One goroutine, run,
// does both.
type writer struct {
	place *place
	lock  *held
	root  string
	books *books
	name  func(weights string) string
	log   *slog.Logger
	saves time.Duration
	pause time.Duration // after a write that failed

	kick    chan struct{} // has room for one value
	stopped chan struct{}

	mu      sync.Mutex
	waiting *round // has not begun

	// of run
	saved   uint64 // the last change that is in the file
	retry   time.Time
	failing error
}

func newWriter(p *place, lock *held, b *books, opt Options) *writer {
	return &writer{
		place: p, lock: lock, root: p.root, books: b, name: opt.ModelName, log: opt.Logger,
		saves: opt.Intervals.Save, pause: opt.Intervals.Disk,
		kick: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
}

// join waits for the next round.
func (w *writer) join(ctx context.Context, wanted bool) (*round, error) {
	w.mu.Lock()
	if w.waiting == nil {
		w.waiting = &round{done: make(chan struct{})}
	}
	r := w.waiting
	r.wanted = r.wanted || wanted
	w.mu.Unlock()
	select {
	case w.kick <- struct{}{}:
	default:
	}
	select {
	case <-r.done:
		return r, nil
	case <-w.stopped:
		return nil, errStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// shown returns the state without Words. Its totals are in the file, unless that cannot be
// written.
func (w *writer) shown(ctx context.Context) ([]byte, error) {
	r, err := w.join(ctx, true)
	if err != nil {
		return nil, err
	}
	return r.data, r.err
}

// written returns when all that is counted now is in the file, or could not be written.
func (w *writer) written(ctx context.Context) error {
	r, err := w.join(ctx, false)
	if err != nil {
		return err
	}
	return r.writeErr
}

// run makes rounds until ctx ends.
func (w *writer) run(ctx context.Context) {
	defer close(w.stopped)
	ticker := time.NewTicker(w.saves)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.round(ctx)
		case <-w.kick:
			w.round(ctx)
		}
	}
}

func (w *writer) round(ctx context.Context) {
	w.mu.Lock()
	r := w.waiting
	w.waiting = nil
	w.mu.Unlock()
	if r == nil {
		r = &round{done: make(chan struct{})}
	}
	defer close(r.done)
	var state telemetry.State
	if r.wanted {
		state = w.books.state(w.root, w.name) // before the file's content, which has no less
	}
	r.writeErr = w.save(ctx)
	if r.wanted {
		keepWords(&state, nil)
		r.data, r.err = encodeState(state)
	}
}

// save writes the file if it lacks a change. After a failure no write is tried for a while,
// and the state is shown nevertheless.
func (w *writer) save(ctx context.Context) error {
	content, changes := w.books.file()
	if changes == w.saved {
		return nil
	}
	if w.failing != nil && time.Now().Before(w.retry) {
		return w.failing
	}
	data, err := encode(content)
	if err == nil {
		err = w.place.do(ctx, func() error {
			return w.lock.change(func() error {
				if !w.place.has(lockName, w.lock.info) {
					return errLost // the file is another's, see watch
				}
				return replace(w.place.fs, w.place.path(fileName), data)
			})
		})
	}
	if err == nil {
		if w.failing != nil {
			w.log.Info("kv tier: totals of reports are written again", "path", w.place.path(fileName))
		}
		w.saved, w.failing = changes, nil
		return nil
	}
	err = fmt.Errorf("write %s: %w", w.place.path(fileName), err)
	if w.failing == nil {
		w.log.Warn("kv tier: totals of reports cannot be written, a killed server would lose them", "error", err)
	}
	w.failing, w.retry = err, time.Now().Add(w.pause)
	return err
}
