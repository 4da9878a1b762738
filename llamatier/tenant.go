package llamatier

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Tenant separates requests: those of different tenants share no slot's rows, no page and no text. It is a digest,
// so that no name has what a client wrote. The zero Tenant has all requests that name none.
type Tenant [32]byte

// ErrSeparate reports a request that could not be kept apart from those of other tenants in time.
var ErrSeparate = errors.New("llamatier: slots with rows of other tenants were not free in time")

// media are those of a tenant's prompts: a mark at the first token makes the keys of all pages the tenant's.
func (t Tenant) media() []pagefile.Media {
	if t == (Tenant{}) {
		return nil
	}
	return []pagefile.Media{{Hash: t}}
}

// A slot has rows of one tenant, and is emptied before another one's request. Where the engine chooses the slot, all
// slots have rows of the request's tenant: it gets leave to pass while no other tenant's request has leave, waits for
// the slots of others and empties them. Meanwhile no other tenant's request begins. Without tenants nothing waits.

// shutsOutLocked reports whether no request of a tenant begins, because another one's have leave to run in any slot.
// Of a closed table, the slots are taken to be saved.
func (t *table) shutsOutLocked(of Tenant) bool { return t.passes > 0 && t.passer != of && !t.closed }

// passLocked gives a request leave to run in any slot, unless another tenant's has it, or waits before it.
func (t *table) passLocked(of Tenant, before []*waiter) bool {
	other := func(w *waiter) bool { return w.request.Tenant != of }
	if t.passes > 0 && t.passer != of || slices.ContainsFunc(before, other) {
		return false
	}
	t.passes++
	t.passer = of
	return true
}

// pass waits until a tenant's request has leave to run in any slot. The caller calls leave, or endUnknown.
func (t *table) pass(ctx context.Context, of Tenant) error {
	t.mu.Lock()
	granted := t.passLocked(of, t.waiting)
	t.mu.Unlock()
	if granted {
		return nil
	}
	_, err := t.wait(ctx, &waiter{request: Request{Tenant: of}, passes: true, got: make(chan grant, 1)})
	return err
}

// passAtOnce gives a tenant's request leave to run in any slot, if nothing must be waited for.
func (t *table) passAtOnce(of Tenant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	others := func(s *slot) bool { return !s.isOfLocked(of) }
	return !slices.ContainsFunc(t.slots, others) && t.passLocked(of, t.waiting)
}

// passFirst gives leave to a request that began before any tenant's.
func (t *table) passFirst() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passes, t.passer = t.passes+1, Tenant{}
}

// isOf reports whether a slot has rows of a tenant alone, and gets none of others.
func (t *table) isOf(s *slot, of Tenant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.isOfLocked(of)
}

func (s *slot) isOfLocked(t Tenant) bool { return s.tenant == t && (!s.busy || s.wants == t) }

// shutsOut is shutsOutLocked.
func (t *table) shutsOut(of Tenant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shutsOutLocked(of)
}

// leave takes the leave of a request back that has not begun.
func (t *table) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLocked()
}

func (t *table) leaveLocked() {
	t.passes--
	t.serveLocked()
}

// becomes notes whose the rows of a busy, empty slot will be.
func (t *table) becomes(s *slot, of Tenant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.tenant = of
}

// takeOwnLocked makes a slot busy for its own sake. A nil slot stays nil.
func (s *slot) takeOwnLocked() *slot {
	if s == nil {
		return nil
	}
	return s.takeLocked(s.tenant)
}

// lateFor returns the time for which a request that was given up may still begin in a busy slot.
func (t *table) lateFor(s *slot) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.left
	if s.gone.After(last) {
		last = s.gone
	}
	return t.late - time.Since(last)
}

// alone waits until a tenant's request may run in a slot that the engine chooses: none has rows of another one.
func (t *Tier) alone(ctx context.Context, of Tenant) error {
	limited, stop := context.WithTimeout(ctx, t.patience.apart)
	defer stop()
	if err := t.table.pass(limited, of); err != nil {
		return apart(ctx, err)
	}
	for _, s := range t.table.slots {
		if t.table.isOf(s, of) {
			continue
		}
		s, err := t.table.take(limited, Request{Slot: s.id, Tenant: of})
		if err == nil {
			err = t.separate(limited, s, of)
			t.table.giveBack(s)
		}
		if err != nil {
			t.table.leave()
			return apart(ctx, err)
		}
	}
	return nil
}

// takeApart is take, for a bounded time if another tenant's request runs in any slot.
func (t *Tier) takeApart(ctx context.Context, r Request) (*slot, error) {
	if !t.table.shutsOut(r.Tenant) {
		return t.take(ctx, r)
	}
	limited, stop := context.WithTimeout(ctx, t.patience.apart)
	defer stop()
	s, err := t.take(limited, r)
	return s, apart(ctx, err)
}

// apart is the error of a wait for other tenants that was bounded within ctx.
func apart(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return ErrSeparate
	}
	return err
}

// separate empties a busy slot with rows of another tenant, which the engine would otherwise go on with.
func (t *Tier) separate(ctx context.Context, s *slot, of Tenant) error {
	if s.tenant == of {
		return nil
	}
	t.saver.saveFirst(ctx, s)
	for wait, next := t.table.lateFor(s), leaveEvery; ; wait, next = next, min(2*next, t.patience.look) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		if t.restorer.actor.empty(ctx, s) {
			t.table.becomes(s, of)
			return nil
		}
	}
}
