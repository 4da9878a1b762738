package kvcache

import (
	"context"
	"sync"
	"time"

	"github.com/ollama/ollama/model/input"
)

// filling restores the text of the latest conversation into slot 0 while the model's weights load.
// The first request ends the filling: it waits for the text if it goes on with the text.
type filling struct {
	stop context.CancelFunc
	done chan struct{} // closed when nothing uses the slot any more

	mu   sync.Mutex
	text []int32 // nil before it is known
}

// FillSlot is called with the runner's lock held, before the first request, and returns at once. The
// conversation of Options.Latest is then restored into slot 0 if it has at most `most` tokens, and its
// pages do not count as used. hold is called with the lock held: the slot holds the inputs.
//
// Only one slot is filled: a second conversation would take other cells than in a server that was asked
// for nothing else, which changes low bits without flash attention. Models with recurrent state are
// left out, because a state serves only requests that go on exactly at its position.
func (t *TieredCausal) FillSlot(lock sync.Locker, most int, hold func(inputs []*input.Input)) {
	if t.opts.Latest == nil || t.caches.stateful() {
		return
	}
	ctx, cancel := context.WithCancel(t.running)
	f := &filling{stop: cancel, done: make(chan struct{})}
	t.mu.Lock()
	t.filling = f
	t.mu.Unlock()
	go func() {
		defer close(f.done)
		defer cancel()
		if text := f.take(ctx, t.opts.Latest); len(text) > 0 && len(text) <= most {
			t.fillSlot(ctx, lock, text, hold)
		}
	}()
}

// take waits for the text.
func (f *filling) take(ctx context.Context, from <-chan []int32) []int32 {
	select {
	case text := <-from:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.text = text
		return text
	case <-ctx.Done():
		return nil
	}
}

// fillSlot restores a text into slot 0, which is empty.
func (t *TieredCausal) fillSlot(ctx context.Context, lock sync.Locker, text []int32, hold func(inputs []*input.Input)) {
	began := time.Now()
	inputs := make([]*input.Input, len(text))
	for i, token := range text {
		inputs[i] = &input.Input{Token: token}
	}
	lock.Lock()
	defer lock.Unlock()
	r := &restoring{restorer: &t.restorer, lock: lock, limit: len(text), ahead: true}
	r.hold = func(tokens int) { hold(inputs[:tokens]) }
	r.prompt, _ = t.identity.read(inputs)
	err := r.restoreExact(ctx)
	r.hold(r.result.Held)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.at(0).early = early{r.result, r.from.Cut(r.result.Held)}
	if r.result.Held == 0 && err == nil {
		return // computing is quicker
	}
	attrs := []any{"tokens", r.result.Held, "of", len(text), "lossy", r.result.Lossy, "took", time.Since(began).Round(time.Microsecond)}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	t.log.Info("kv tier: filled a slot while the model loads", attrs...)
}

// AwaitFilling is called with the runner's lock held, before a request looks at the slots, and
// releases the lock while waiting. AwaitFilling ends the filling, at once unless the prompt goes on
// with the text. The error is the context's.
func (t *TieredCausal) AwaitFilling(ctx context.Context, lock sync.Locker, prompt []*input.Input) (err error) {
	t.mu.Lock()
	f := t.filling
	t.mu.Unlock()
	if f == nil {
		return nil
	}
	unlocked(lock, func() { err = f.await(ctx, prompt) })
	if err == nil {
		t.mu.Lock()
		t.filling = nil
		t.mu.Unlock()
	}
	return err
}

func (f *filling) await(ctx context.Context, prompt []*input.Input) error {
	if !f.continues(prompt) {
		f.stop()
	}
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// continues reports whether a prompt has at least half of the text.
func (f *filling) continues(prompt []*input.Input) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	shared := 0
	for shared < min(len(prompt), len(f.text)) && prompt[shared].Token == f.text[shared] {
		shared++
	}
	return shared > 0 && 2*shared >= len(f.text)
}

// awaitFilled waits until nothing fills a slot any more. TieredCausal.running has ended.
func (t *TieredCausal) awaitFilled() {
	t.mu.Lock()
	f := t.filling
	t.mu.Unlock()
	if f != nil {
		<-f.done
	}
}
