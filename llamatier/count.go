package llamatier

import "context"

// The number of tokens that the engine has generated bounds the length of an answer that nobody
// heard to the end. It only grows, so an earlier number serves as well.

// count returns a channel that gets at most Engine.Generated before a request, -1 if that is not
// known.
func (t *Tier) count(ctx context.Context, r Request) <-chan int {
	counted := make(chan int, 1)
	t.mu.Lock()
	known := t.counted
	t.mu.Unlock()
	switch {
	case r.Rest != nil:
		counted <- -1 // an image takes tokens that nobody counts
	case known >= 0:
		counted <- known
	default:
		go func() { counted <- t.generated(ctx) }()
	}
	return counted
}

// generated is at most Engine.Generated, -1 if that is not known.
func (t *Tier) generated(ctx context.Context) int {
	if least, _, err := t.generatedNow(ctx); err == nil {
		return least
	}
	return -1
}

// countLocked asks the engine for the number that count returns, so that the next request need
// not wait for it. The caller has made a slot busy, in which an answer has been heard to the end.
func (t *Tier) countLocked() {
	ended := t.ended
	t.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		counted := t.generated(ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.ended == ended {
			t.counted = counted
		}
	})
}

// recountLocked notes that the engine may have generated tokens since it was asked.
func (t *Tier) recountLocked() {
	t.ended++
	t.counted = -1
}
