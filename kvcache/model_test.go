package kvcache

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/kvcache/runs"
)

// simulation drives random interleavings of everything a runner does. The store checks every
// row that is sealed, the cache every row that is attended to.
type simulation struct {
	*fakeRunner
	store *memStore
	runs  bool // text at other positions is reused
	start func(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner
}

// prompt draws from a small tree of texts, so that prefixes are shared at all lengths.
func drawPrompt(t *rapid.T) []int32 {
	text := tokenRange(rapid.IntRange(1, 3).Draw(t, "text"), rapid.IntRange(1, 50).Draw(t, "length"))
	if rapid.Bool().Draw(t, "truncated") { // old messages are left out
		keep := rapid.IntRange(0, len(text)-1).Draw(t, "keep")
		text = slices.Delete(text, keep, rapid.IntRange(keep, len(text)-1).Draw(t, "from"))
	}
	return append(text, tokenRange(rapid.IntRange(10, 12).Draw(t, "ending"), rapid.IntRange(1, 8).Draw(t, "extra"))...)
}

func (s *simulation) pick(t *rapid.T, want func(*fakeSlot) bool) *fakeSlot {
	var slots []*fakeSlot
	for _, slot := range s.slots {
		if want(slot) {
			slots = append(slots, slot)
		}
	}
	if len(slots) == 0 {
		t.Skip("no such slot")
	}
	return rapid.SampledFrom(slots).Draw(t, "slot")
}

func idle(s *fakeSlot) bool { return !s.inUse }
func busy(s *fakeSlot) bool { return s.inUse }

// Load starts a request, possibly in a slot forked from another; batches land meanwhile.
func (s *simulation) Load(t *rapid.T) {
	slot := s.pick(t, idle)
	prompt := drawPrompt(t)
	if source := rapid.SampledFrom(s.slots).Draw(t, "source"); source != slot && rapid.Bool().Draw(t, "fork") {
		if n := commonPrefix(source.inputs, inputsOf(prompt)); n > 0 {
			s.mu.Lock()
			s.tiered.CopyPrefix(source.id, slot.id, int32(n))
			slot.inputs, slot.exact = slices.Clone(source.inputs[:n]), min(n, source.exact)
			s.mu.Unlock()
		}
	}
	landed := make(chan struct{})
	go func() {
		defer close(landed)
		s.mu.Lock() // a restore lets go of the lock while it reads
		flying := s.flight
		s.mu.Unlock()
		for range flying {
			s.compute()
		}
	}()
	s.device.pace(rapid.IntRange(0, 30).Draw(t, "copies per work"))
	s.load(slot, prompt, rapid.Bool().Draw(t, "store"))
	<-landed
}

func (s *simulation) Build(t *rapid.T) {
	if len(s.flight) == 2 || !s.build() {
		t.Skip("nothing to build")
	}
}

func (s *simulation) Compute(t *rapid.T) {
	if !s.compute() {
		t.Skip("nothing in flight")
	}
}

// Launch hands the oldest batch to the device: it is being computed.
func (s *simulation) Launch(t *rapid.T) {
	if !s.launch() {
		t.Skip("nothing to compute")
	}
}

// Device lets the oldest of what was handed to the device take effect.
func (s *simulation) Device(t *rapid.T) {
	if !s.device.step() {
		t.Skip("nothing on the device")
	}
}

func (s *simulation) Generate(t *rapid.T) {
	slot := s.pick(t, func(s *fakeSlot) bool { return s.inUse && len(s.rest) == 0 && len(s.inputs) > 0 })
	if len(slot.inputs) >= s.numCtx {
		t.Skip("context is full")
	}
	slot.rest = inputsOf([]int32{rapid.Int32Range(900, 903).Draw(t, "token")})
}

func (s *simulation) Finish(t *rapid.T) { s.finish(s.pick(t, busy)) }

func (s *simulation) Shift(t *rapid.T) {
	slot := s.pick(t, func(s *fakeSlot) bool { return s.inUse && len(s.inputs) > 12 })
	keep := rapid.IntRange(0, 6).Draw(t, "keep")
	s.shift(slot, keep, rapid.IntRange(1, (len(slot.inputs)-keep)/2).Draw(t, "discard"))
}

// Restart loses everything but the store.
func (s *simulation) Restart(t *rapid.T) {
	for s.compute() {
	}
	s.tiered.Close()
	fresh := s.start(s.t, s.store, len(s.slots), s.numCtx, simulated(s.runs))
	fresh.nextID = s.nextID
	s.fakeRunner = fresh
}

// Check holds when nothing is in flight: every row that should be exact is.
func (s *simulation) Check(t *rapid.T) {
	_ = s.tiered.queue.wait(s.t.Context())
	s.store.requireRight(t)
	if len(s.flight) > 0 {
		return
	}
	s.requireMirrors(t)
	for _, slot := range s.slots {
		if len(slot.inputs) == slot.exact || len(s.model.caches) == 1 {
			s.model.requireRows(t, slot.id, tokensOf(slot.inputs[:slot.exact]))
		}
		s.cache.requireRows(t, slot.id, tokensOf(slot.inputs[:slot.exact]))
	}
}

// requireMirrors checks that slots know where their rows are.
func (s *simulation) requireMirrors(t *rapid.T) {
	s.tiered.mu.Lock()
	defer s.tiered.mu.Unlock()
	for seq, mirror := range s.tiered.slots {
		s.tiered.forget(seq, mirror)
		for g := range s.tiered.groups {
			cache := s.tiered.groups[g].Rows.(*fakeCache)
			for pos := mirror.from[g]; pos < len(mirror.tokens); pos++ {
				cell, ok := cache.cellOf(seq, int32(pos))
				require.True(t, ok, "slot %d group %d has forgotten position %d of %d, not %d and before", seq, g, pos, len(mirror.tokens), mirror.from[g])
				require.Equal(t, cell, mirror.cells[g][pos])
			}
		}
	}
}

// simulated are the options of a simulation.
func simulated(reuse bool) Options {
	o := Options{Poison: true}
	if reuse {
		o.Runs = runs.New(8, 12)
	}
	return o
}

func TestRandomInterleavings(t *testing.T) { randomInterleavings(t, false, false, newFakeRunner) }

// A window forgets rows, and comes back as far as the position needs it.
func TestRandomInterleavingsWithAWindow(t *testing.T) {
	randomInterleavings(t, true, false, newWindowedRunner)
}

// What is reused at another position is never taken for exact.
func TestRandomInterleavingsWithRuns(t *testing.T) {
	randomInterleavings(t, false, true, newFakeRunner)
}

func TestRandomInterleavingsWithRunsAndAWindow(t *testing.T) {
	randomInterleavings(t, true, true, newWindowedRunner)
}

func randomInterleavings(t *testing.T, windowed, reuse bool, start func(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner) {
	rapid.Check(t, func(rt *rapid.T) {
		store := newMemStore(t)
		store.windowed = windowed
		s := &simulation{store: store, runs: reuse, start: start}
		s.fakeRunner = start(t, store, rapid.IntRange(1, 3).Draw(rt, "slots"), 80, simulated(reuse))
		defer func() { s.tiered.Close() }()
		rt.Repeat(map[string]func(*rapid.T){
			"load": s.Load, "build": s.Build, "compute": s.Compute, "compute more": s.Compute,
			"launch": s.Launch, "device": s.Device,
			"generate": s.Generate, "finish": s.Finish, "shift": s.Shift, "restart": s.Restart,
			"": s.Check,
		})
		for s.build() || s.compute() {
		}
		s.Check(rt)
		require.Zero(rt, s.tiered.Stats().FailedCopies)
	})
}
