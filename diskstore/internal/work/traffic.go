package work

import (
	"context"
	"sync"
)

// Traffic counts the operations for which callers wait, so that background work can wait for
// them.
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
