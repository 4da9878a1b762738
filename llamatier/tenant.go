package llamatier

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Tenant separates requests: those of different tenants share no slot's rows, no page and no text. It is a digest,
// so that no name has what a client wrote. The zero Tenant has all requests that name none.
type Tenant [32]byte

// ErrSeparate reports a request that cannot be kept apart from those of other tenants.
var ErrSeparate = errors.New("llamatier: the request cannot be kept apart from those of other tenants")

// media are those of a tenant's prompts: a mark at the first token makes the keys of all pages the tenant's.
func (t Tenant) media() []pagefile.Media {
	if t == (Tenant{}) {
		return nil
	}
	return []pagefile.Media{{Hash: t}}
}

// admit notes the tenant of a request that begins. From the first one on no request runs in a slot that the engine
// chooses, because it would go on with rows of any tenant.
func (t *table) admit(r Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Tenant != (Tenant{}) && t.unknown == 0 {
		t.apart = true
	}
	if r.Tenant != (Tenant{}) && t.unknown > 0 || r.Loose && (t.apart || r.Tenant != (Tenant{})) {
		return ErrSeparate
	}
	return nil
}

// lateFor returns the time for which a request that was given up may still begin in a busy slot.
func (t *table) lateFor(s *slot) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.gone.IsZero() {
		return 0
	}
	return lateMost - time.Since(s.gone)
}

// separate empties a busy slot of another tenant, which the engine would otherwise go on with.
func (t *Tier) separate(ctx context.Context, s *slot, r Request) error {
	if s.tenant == r.Tenant {
		return nil
	}
	select {
	case <-time.After(t.table.lateFor(s)):
	case <-ctx.Done():
		return ctx.Err()
	}
	t.saver.saveFirst(ctx, s)
	if !t.restorer.actor.empty(ctx, s) {
		return ErrSeparate
	}
	s.tenant = r.Tenant
	return nil
}
