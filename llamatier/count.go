package llamatier

import "context"

// The number of tokens that the engine has generated bounds the length of an answer that nobody
// heard to the end. It only grows, so an earlier number serves as well: the Tier always knows one,
// which is 0 before it has asked.

// count returns a channel that gets at most Engine.Generated before a request. The engine is asked
// if it may have generated tokens since it was asked last.
func (t *Tier) count(ctx context.Context) <-chan int {
	counted := make(chan int, 1)
	t.mu.Lock()
	known, fresh := t.counted, t.fresh
	t.mu.Unlock()
	if fresh {
		counted <- known
		return counted
	}
	go func() { counted <- t.generated(ctx) }()
	return counted
}

// generated asks for a number that is at most Engine.Generated. Without an answer it is an earlier
// one.
func (t *Tier) generated(ctx context.Context) int {
	least, _, err := t.generatedNow(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.counted = max(t.counted, least)
	}
	return t.counted
}

// countLocked asks the engine for the number that count returns, so that the next request need
// not wait for it. The caller has made a slot busy, in which an answer has been heard to the end.
func (t *Tier) countLocked() {
	ended := t.ended
	t.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		t.generated(ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.fresh = t.ended == ended
	})
}

// recountLocked notes that the engine may have generated tokens since it was asked.
func (t *Tier) recountLocked() {
	t.ended++
	t.fresh = false
}
