package diskstore

import (
	"context"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// traffic counts the operations that somebody waits for, so that what nobody
// waits for can stand back.
type traffic struct {
	mu      sync.Mutex
	running int
	free    chan struct{} // closed when running becomes 0; nil while it is
}

// enter begins an operation, which ends with leave.
func (t *traffic) enter() (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running++; t.running == 1 {
		t.free = make(chan struct{})
	}
	return t.leave
}

func (t *traffic) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 {
		close(t.free)
		t.free = nil
	}
}

// standBack returns when no operation runs, or with ctx's error.
func (t *traffic) standBack(ctx context.Context) error {
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

// yieldingTier is a Tier whose files are read while nobody waits for anything.
type yieldingTier struct {
	tier.Tier
	traffic *traffic
}

func (t yieldingTier) Open(ctx context.Context, name pagefile.Name) (tier.Blob, error) {
	blob, err := t.Tier.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return yieldingBlob{blob, t.traffic}, nil
}

type yieldingBlob struct {
	tier.Blob
	traffic *traffic
}

func (b yieldingBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := b.traffic.standBack(ctx); err != nil {
		return err
	}
	return b.Blob.ReadAt(ctx, p, off)
}

func (b yieldingBlob) ReadsAtOnce() int { return pagefile.ReadsAtOnce(b.Blob) }
