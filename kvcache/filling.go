package kvcache

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// filling restores the texts of the latest conversations, each into a slot, while the model's
// weights load. The first request ends the filling: it waits for a text that it goes on with, and
// for no other.
type filling struct {
	stop context.CancelFunc
	done chan struct{} // closed when nothing uses the slots any more

	mu    sync.Mutex
	texts []fillText
}

// fillText is a text that is restored into the slot of its index.
type fillText struct {
	tokens []int32
	done   chan struct{} // closed when its rows are in the slot, or do not come
}

// FillSlots is called with the runner's lock held, before the first request, and returns at once. The
// latest conversations of Options.Texts are then restored into slots 0, 1, …, as far as their texts
// have at most most tokens. hold is called with the lock held: a slot holds the inputs.
//
// Models with recurrent state are left out, because a state serves only requests that go on exactly
// at its position.
func (t *TieredCausal) FillSlots(lock sync.Locker, most int, hold func(seq int, inputs []*input.Input)) {
	if t.opts.Texts == nil || t.stateful() {
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
		texts := f.take(ctx, t.opts.Texts)
		for seq, text := range texts {
			if len(text.tokens) <= most && ctx.Err() == nil {
				t.fillSlot(ctx, lock, texts[:seq+1], hold)
			}
			close(text.done)
		}
	}()
}

// take waits for the texts.
func (f *filling) take(ctx context.Context, from <-chan [][]int32) []fillText {
	var texts [][]int32
	select {
	case texts = <-from:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, tokens := range texts {
		f.texts = append(f.texts, fillText{tokens, make(chan struct{})})
	}
	return f.texts
}

// fillSlot restores the last of some texts into its slot, which is empty.
func (t *TieredCausal) fillSlot(ctx context.Context, lock sync.Locker, texts []fillText, hold func(seq int, inputs []*input.Input)) {
	began, seq := time.Now(), len(texts)-1
	text := texts[seq].tokens
	inputs := make([]*input.Input, len(text))
	for i, token := range text {
		inputs[i] = &input.Input{Token: token}
	}
	lock.Lock()
	defer lock.Unlock()
	r := &restoring{TieredCausal: t, lock: lock, seq: seq, limit: len(text)}
	r.hold = func(tokens int) { hold(seq, inputs[:tokens]) }
	r.prompt, _ = t.opts.Media.read(inputs)
	r.forkFilled()
	err := r.restoreExact(ctx)
	r.hold(r.result.Held)
	t.mu.Lock()
	defer t.mu.Unlock()
	r.result.Tokens = r.result.Held
	t.slotLocked(seq).early = r.result
	attrs := []any{"slot", seq, "tokens", r.result.Held, "of", len(text), "took", time.Since(began).Round(time.Microsecond)}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	t.log.Info("kv tier: filled a slot while the model loads", attrs...)
}

// forkFilled takes the beginning of the text from the slot before that has most of it: two chats
// share their cells, as they do where the runner forks a slot.
func (r *restoring) forkFilled() {
	if !r.divisible() {
		return
	}
	from, shared := 0, 0
	r.mu.Lock()
	for seq := range r.seq {
		if s := r.slots[seq]; s != nil && !s.broken {
			if n := pagefile.Shared(s.tokens, r.prompt.tokens); n > shared {
				from, shared = seq, n
			}
		}
	}
	r.mu.Unlock()
	if shared == 0 {
		return
	}
	r.CopyPrefix(from, r.seq, int32(shared))
	r.result.Held = shared
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots[from].early = r.slots[r.seq].early // both slots' first requests have it
}

// AwaitFilling is called with the runner's lock held, before a request looks at the slots, and
// releases the lock while waiting. AwaitFilling ends the filling of slots, after the text that the
// prompt goes on with, if there is one. The error is the context's.
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
	if text := f.match(prompt); text != nil {
		select {
		case <-text.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.stop()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// match returns the text of which a prompt has most, and at least half, or nil.
func (f *filling) match(prompt []*input.Input) *fillText {
	tokens := make([]int32, len(prompt))
	for i, in := range prompt {
		tokens[i] = in.Token
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var best *fillText
	most := 0
	for i := range f.texts {
		text := &f.texts[i]
		if shared := pagefile.Shared(text.tokens, tokens); shared > most && 2*shared >= len(text.tokens) {
			best, most = text, shared
		}
	}
	return best
}

// awaitFilled waits until nothing fills slots any more. TieredCausal.running has ended.
func (t *TieredCausal) awaitFilled() {
	t.mu.Lock()
	f := t.filling
	t.mu.Unlock()
	if f != nil {
		<-f.done
	}
}

// takeEarly counts the rows of the slot that came while the model loaded as restored for this, the
// first request. The request finds a beginning of its prompt in the slot.
func (r *restoring) takeEarly() {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slotLocked(r.seq)
	early := s.early
	s.early = Restored{}
	if n := min(early.Tokens, r.result.Held); n > 0 {
		r.result.Tokens, r.result.Early = n, n
		r.result.Bytes = early.Bytes * int64(n) / int64(early.Tokens)
		r.result.Tiers = slices.Clone(early.Tiers)
	}
}
