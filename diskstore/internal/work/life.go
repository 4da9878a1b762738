package work

import (
	"context"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// Life counts running operations and ends them when the store closes.
type Life struct {
	Ctx    context.Context // ends when the store closes
	cancel context.CancelFunc
	ops    Traffic

	mu     sync.Mutex
	closed bool
}

func NewLife() *Life {
	ctx, cancel := context.WithCancel(context.Background())
	return &Life{Ctx: ctx, cancel: cancel}
}

// Enter begins an operation. opCtx also ends when the store closes. The caller calls leave at
// the end of the operation.
func (l *Life) Enter(ctx context.Context) (opCtx context.Context, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, tier.ErrClosed
	}
	left := l.ops.Enter()
	opCtx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.Ctx, cancel)
	return opCtx, func() {
		stop()
		cancel()
		left()
	}, nil
}

// Close ends all operations and waits for them, at most for patience. Close returns false
// after an earlier call.
func (l *Life) Close(patience time.Duration) bool {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.mu.Unlock()
	if was {
		return false
	}
	l.cancel()
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = l.ops.StandBack(wait) // after patience, those that hang are left behind
	return true
}

// Running is the number of running operations.
func (l *Life) Running() int {
	l.ops.mu.Lock()
	defer l.ops.mu.Unlock()
	return l.ops.running
}

// Traffic counts the operations for which callers wait, so that background work can wait for them.
type Traffic struct {
	mu      sync.Mutex
	running int
	free    chan struct{} // closed when running becomes 0; nil while running is 0
}

// Enter begins an operation, which ends with leave.
func (t *Traffic) Enter() (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running++; t.running == 1 {
		t.free = make(chan struct{})
	}
	return t.leave
}

func (t *Traffic) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 {
		close(t.free)
		t.free = nil
	}
}

// StandBack returns when no operation runs, or with ctx's error.
func (t *Traffic) StandBack(ctx context.Context) error {
	for {
		t.mu.Lock()
		free := t.free
		t.mu.Unlock()
		if free == nil {
			return ctx.Err()
		}
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
