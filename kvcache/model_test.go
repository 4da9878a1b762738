package kvcache

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// simulation drives random interleavings of all operations of a runner. The store checks
// every sealed row, the cache every row that a token attends to.
type simulation struct {
	*fakeRunner
	store    *memStore
	hangs    *hangingStore    // store, for runners
	disk     *diskstore.Store // may be nil
	drawn    drawnOptions
	start    startRunner
	loading  []*loading
	lost     bool // the store has lost pages by itself
	steps    int
	restored int   // restores of a state
	near     int   // tokens restored from the first lossy page on
	most     int64 // bound of the queue in bytes
}

// drawnOptions are the options of a simulation's runners.
type drawnOptions struct {
	runs       bool // text at other positions is reused
	recurrent  bool // the model has recurrent layers, and one slot
	keeps      bool // see fakeStates
	stateEvery int
	hurried    bool // a restore gives up pages that do not arrive
	host       bool // rows are in host memory
	delays     bool // tails wait for a while
	explained  bool // misses are explained
	lossy      bool // lossy pages are restored
	slots      int
	elastic    bool // a restore takes the runner's lock while no batch is built, and idle slots are emptied
	forks      bool // each request looks for a slot to fork
	embeds     bool // embeddings use slots
	disk       bool // pages are in a real store, too, in which pages in memory are before compressed ones
}

// begin starts a runner.
func (s *simulation) begin(t testing.TB, slots int) {
	opts := Options{Poison: true, Lossy: s.drawn.lossy, StateEvery: s.drawn.stateEvery, QueuedBytes: s.most}
	if s.drawn.delays {
		opts.TailDelay = time.Millisecond
	}
	if s.drawn.explained {
		opts.Recents = why.NewRecents()
	}
	if s.drawn.runs {
		opts.Runs = runs.New(8, 12)
	}
	var store Store = s.hangs
	if s.disk != nil {
		store = diskBelow{s.hangs, s.disk}
	}
	s.fakeRunner = s.start(t, store, slots, 80, opts)
	s.device.host = s.drawn.host
	if s.drawn.recurrent {
		withStates(s.fakeRunner)
		s.states.keeps = s.drawn.keeps
	}
	if s.drawn.hurried {
		now := time.Now()
		s.tiered.device.clock.now = func() time.Time { return now } // batches that take no time are not measured
		s.tiered.gate.Always, s.tiered.gate.After = false, s.hangs.after
	}
}

// end ends the runner.
func (s *simulation) end() {
	s.tiered.Close()
	s.near += int(s.tiered.Stats().LossyTokens)
	if s.drawn.recurrent {
		s.restored += int(s.tiered.Stats().Restores)
	}
}

// loading is a request whose restore is under way. The restore runs until it releases or
// wants the runner's lock, and then waits for its next turn while others go on.
type loading struct {
	*simulation
	slot   *fakeSlot
	cancel context.CancelFunc
	paused chan struct{}
	resume chan struct{}
	done   chan struct{}
}

// pausingLock is the runner's lock as a restore sees it.
type pausingLock struct {
	sync.Locker
	l *loading
}

func (p pausingLock) Unlock() {
	p.Locker.Unlock()
	p.l.pause()
}

// Lock waits, with elastic memory, until no batch is built: on a device memory comes only then.
func (p pausingLock) Lock() {
	p.l.pause()
	p.Locker.Lock()
	for p.l.drawn.elastic && p.l.built.Load() > 0 {
		p.Locker.Unlock()
		p.l.pause()
		p.Locker.Lock()
	}
}

// pause waits for the request's turn.
func (l *loading) pause() {
	l.paused <- struct{}{}
	<-l.resume
}

// Tokens that only private requests have.
const privateBegin, privateEnd = 20, 22

func isPrivate(token int32) bool {
	return token >= 1000*privateBegin && token < 1000*(privateEnd+1)
}

// drawPrompt draws a prompt from a small tree of texts, so that prefixes are shared at all
// lengths, or continues the text of a slot.
func (s *simulation) drawPrompt(t *rapid.T, public bool) []int32 {
	if held := tokensOf(rapid.SampledFrom(s.slots).Draw(t, "continued").inputs); len(held) > 0 && rapid.Bool().Draw(t, "continue") {
		if !public || !slices.ContainsFunc(held, isPrivate) {
			return append(slices.Clone(held[:min(len(held), 70)]), drawEnding(t, public)...)
		}
	}
	text := tokenRange(rapid.IntRange(1, 3).Draw(t, "text"), rapid.IntRange(1, 50).Draw(t, "length"))
	if rapid.Bool().Draw(t, "truncated") { // old messages are left out
		keep := rapid.IntRange(0, len(text)-1).Draw(t, "keep")
		text = slices.Delete(text, keep, rapid.IntRange(keep, len(text)-1).Draw(t, "from"))
	}
	return append(text, drawEnding(t, public)...)
}

func drawEnding(t *rapid.T, public bool) []int32 {
	ending := rapid.IntRange(10, 12).Draw(t, "ending")
	if !public {
		ending += privateBegin - 10
	}
	return tokenRange(ending, rapid.IntRange(1, 8).Draw(t, "extra"))
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

func (s *simulation) idle(slot *fakeSlot) bool { return !slot.inUse && !s.isLoading(slot) }

func (s *simulation) busy(slot *fakeSlot) bool { return slot.inUse && !s.isLoading(slot) }

func (s *simulation) isLoading(slot *fakeSlot) bool {
	return slices.ContainsFunc(s.loading, func(l *loading) bool { return l.slot == slot })
}

// Load starts a request, possibly in a slot forked from another slot, which may be restoring.
func (s *simulation) Load(t *rapid.T) {
	slot, public := s.pick(t, s.idle), rapid.Bool().Draw(t, "store")
	prompt := s.drawPrompt(t, public)
	if source := rapid.SampledFrom(s.slots).Draw(t, "source"); source != slot && (s.drawn.forks || rapid.Bool().Draw(t, "fork")) {
		if n := commonPrefix(source.inputs, inputsOf(prompt)); n > 0 {
			s.mu.Lock()
			require.NoError(t, s.tiered.AwaitFilling(s.t.Context(), &s.mu, inputsOf(prompt))) // a fork looks at slots
			s.tiered.CopyPrefix(source.id, slot.id, int32(n))
			slot.inputs, slot.exact = slices.Clone(source.inputs[:n]), min(n, source.exact)
			s.mu.Unlock()
		}
	}
	s.device.pace(rapid.IntRange(0, 30).Draw(t, "copies per work"))
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &loading{simulation: s, slot: slot, cancel: cancel, paused: make(chan struct{}), resume: make(chan struct{}), done: make(chan struct{})}
	s.loading = append(s.loading, l)
	s.lock = pausingLock{&s.mu, l}
	go func(r *fakeRunner) {
		defer close(l.done)
		if _, err := r.loadContext(ctx, slot, inputsOf(prompt), public); err != nil && ctx.Err() == nil {
			panic(err)
		}
	}(s.fakeRunner)
	s.until(l)
	if rapid.Bool().Draw(t, "at once") {
		for slices.Contains(s.loading, l) {
			s.advance(l)
		}
	}
}

// Converse runs a whole request, so that there is text to restore.
func (s *simulation) Converse(t *rapid.T) {
	slot, public := s.pick(t, s.idle), rapid.Bool().Draw(t, "store")
	prompt := s.drawPrompt(t, public)
	s.whole(slot, prompt, public)
}

// whole runs a request from its beginning to its end, after the batches in flight.
func (s *simulation) whole(slot *fakeSlot, prompt []int32, public bool) {
	s.lock = &s.mu
	for s.compute() {
	}
	s.load(slot, prompt, public)
	for len(slot.rest) > 0 {
		_ = s.build() && s.compute()
	}
	s.finish(slot)
}

// Heal runs a whole public request in a store that takes pages. Afterwards every page of the slot is
// stored, also one that the store had lost or refused, or sets aside during the request.
func (s *simulation) Heal(t *rapid.T) {
	slot := s.pick(t, func(slot *fakeSlot) bool { return s.idle(slot) })
	s.store.mu.Lock()
	s.store.failing, s.store.fail = nil, nil
	s.store.mu.Unlock()
	prompt := s.drawPrompt(t, true)
	s.whole(slot, prompt, true)
	if len(s.loading) == 0 {
		for s.build() || s.compute() {
		}
		s.tiered.reads.Wait() // a probe may have set a page aside and not told of it yet
		s.flush()
		s.requireStored(t, slot.id)
	}
}

// until waits until a request pauses or is loaded.
func (s *simulation) until(l *loading) {
	select {
	case <-l.paused:
	case <-l.done:
		l.cancel()
		s.loading = slices.DeleteFunc(s.loading, func(other *loading) bool { return other == l })
	}
}

// advance lets a request go on that may wait for in-flight batches.
func (s *simulation) advance(l *loading) {
	l.resume <- struct{}{}
	for s.compute() {
	}
	s.until(l)
}

func (s *simulation) pickLoading(t *rapid.T) *loading {
	if len(s.loading) == 0 {
		t.Skip("nothing is loading")
	}
	return rapid.SampledFrom(s.loading).Draw(t, "loading")
}

func (s *simulation) Advance(t *rapid.T) { s.advance(s.pickLoading(t)) }

// Abort gives up a request during its restore.
func (s *simulation) Abort(t *rapid.T) { s.pickLoading(t).cancel() }

// loaded lets all requests go on until they are loaded.
func (s *simulation) loaded() {
	for len(s.loading) > 0 {
		s.advance(s.loading[0])
	}
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

// Device lets the oldest work on the device take effect.
func (s *simulation) Device(t *rapid.T) {
	if !s.device.step() {
		t.Skip("nothing on the device")
	}
}

// Report makes a report, at any moment.
func (s *simulation) Report(t *rapid.T) {
	source := telemetry.Source{Meter: s.meter, Fill: s.tiered.Fill}
	report := source.Report()
	require.LessOrEqual(t, len(report.Slots), len(s.slots))
	for _, slot := range report.Slots {
		require.LessOrEqual(t, slot.Hot, (slot.Tokens+s.tiered.opts.PageTokens-1)/s.tiered.opts.PageTokens)
		require.GreaterOrEqual(t, min(slot.Hot, slot.Warm, slot.Cold, slot.Remote, slot.Tokens, slot.Restored), 0)
	}
	for _, memory := range report.Memory {
		require.GreaterOrEqual(t, memory.Bytes, int64(0), memory.Name)
	}
}

// Hold lets nothing be copied beside batches until somebody waits for it, or ends that.
func (s *simulation) Hold(t *rapid.T) {
	s.tiered.queue.hold(rapid.Bool().Draw(t, "hold"))
}

func (s *simulation) Generate(t *rapid.T) {
	slot := s.pick(t, func(slot *fakeSlot) bool { return s.busy(slot) && len(slot.rest) == 0 && len(slot.inputs) > 0 })
	if len(slot.inputs) >= s.numCtx {
		t.Skip("context is full")
	}
	token := rapid.Int32Range(900, 903).Draw(t, "token")
	if !slot.store {
		token += 1000 * privateEnd
	}
	slot.rest = inputsOf([]int32{token})
}

func (s *simulation) Finish(t *rapid.T) { s.finish(s.pick(t, s.busy)) }

// Empty takes the memory of a slot that nobody uses for others.
func (s *simulation) Empty(t *rapid.T) {
	slot := s.pick(t, func(slot *fakeSlot) bool { return s.idle(slot) && len(slot.inputs) > 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.empty(slot)
}

// Embed computes an embedding in a slot.
func (s *simulation) Embed(t *rapid.T) {
	slot := s.pick(t, s.idle)
	s.mu.Lock()
	require.NoError(t, s.tiered.AwaitFilling(s.t.Context(), &s.mu, nil))
	s.mu.Unlock()
	s.embed(slot, tokenRange(rapid.IntRange(1, 3).Draw(t, "text"), rapid.IntRange(1, fakeBatchMax).Draw(t, "length")))
}

// Shift reaches the end of a slot's context, in a model that can shift or cannot.
func (s *simulation) Shift(t *rapid.T) {
	slot := s.pick(t, func(slot *fakeSlot) bool { return s.busy(slot) && len(slot.inputs) > 12 })
	keep := rapid.IntRange(0, 6).Draw(t, "keep")
	s.cache.rigid = rapid.Bool().Draw(t, "rigid") || s.drawn.recurrent
	s.shift(slot, keep, rapid.IntRange(1, (len(slot.inputs)-keep)/2).Draw(t, "discard"))
}

// Break makes reads of some page fail, and writes of some or all pages.
func (s *simulation) Break(t *rapid.T) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.readErr, s.store.failing, s.store.fail = nil, nil, nil
	s.hangs.hang(-1)
	page := rapid.IntRange(0, 7).Draw(t, "page")
	switch rapid.SampledFrom([]string{"nothing", "read", "damaged", "unreadable", "write", "writes", "full", "no room"}).Draw(t, "break") {
	case "read":
		s.store.readErr = map[int]error{page: errRefused}
	case "damaged":
		s.store.readErr = map[int]error{page: pagefile.ErrDamaged}
		s.lost = true
	case "unreadable":
		s.store.readErr = map[int]error{page: syscall.EIO}
		s.lost = true
	case "write":
		s.store.failing = map[int]error{page: errRefused}
	case "full":
		s.store.failing = map[int]error{page: tier.ErrNoSpace}
	case "no room":
		s.store.fail = tier.ErrNoSpace
	case "writes":
		s.store.fail = errRefused
	}
}

// Hang makes reads of some page hang, or of none. Reads do not fail then: a restore that
// finds a damaged page waits for all others.
func (s *simulation) Hang(t *rapid.T) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.readErr = nil
	s.hangs.hang(rapid.IntRange(-1, 4).Draw(t, "page"))
}

// Wait lets enough time pass for a failed store to be tried again.
func (s *simulation) Wait(t *rapid.T) {
	s.tiered.queue.retry()
	s.timers.fire()
}

// Lose makes the store lose pages.
func (s *simulation) Lose(t *rapid.T) {
	if s.store.lose(8*rapid.IntRange(0, 7).Draw(t, "page")) == 0 {
		t.Skip("there is no such page")
	}
	s.lost = true
}

// Cool makes pages lossy, as the store does with pages that move down. Exact ones may stay.
func (s *simulation) Cool(t *rapid.T) {
	stay := rapid.IntRange(0, 3).Draw(t, "stay") == 0
	if s.store.cool(8*rapid.IntRange(0, 7).Draw(t, "page"), stay) == 0 {
		t.Skip("there is no such page")
	}
	s.lost = s.lost || !stay
}

// Restart loses everything except the store.
func (s *simulation) Restart(t *rapid.T) {
	s.loaded()
	for s.compute() {
	}
	s.end()
	nextID := s.nextID
	s.begin(s.t, len(s.slots))
	s.nextID = nextID
	if rapid.Bool().Draw(t, "fill") {
		s.fillSome(t)
	}
}

// fillSome fills a slot with a text of the store, perhaps not to its end.
func (s *simulation) fillSome(t *rapid.T) {
	texts := s.store.texts()
	if len(texts) == 0 {
		return
	}
	s.fill(rapid.SampledFrom(texts).Draw(t, "latest"))
	if s.tiered.filling != nil && rapid.Bool().Draw(t, "cut short") {
		s.tiered.filling.stop()
	}
	if s.tiered.filling != nil {
		s.filled()
	}
}

// texts are the texts of all pages in the store, in the order of their keys.
func (s *memStore) texts() [][]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var texts [][]int32
	all := maps.Clone(s.cold.pages)
	if all == nil {
		all = make(map[pagefile.Key]*pagefile.Page)
	}
	maps.Copy(all, s.pages)
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b pagefile.Key) int { return slices.Compare(a[:], b[:]) }) {
		page := all[key]
		if before := s.history(page.Parent); len(before) == int(page.Start) {
			texts = append(texts, append(slices.Clone(before), page.Tokens...))
		}
	}
	return texts
}

// Check checks the invariants after every step.
func (s *simulation) Check(t *rapid.T) {
	s.steps++
	if !s.tiered.queue.holds() {
		_ = s.tiered.queue.wait(s.t.Context())
	}
	s.store.requireRight(t)
	s.store.requirePublic(t)
	s.checkInvariants(t)
	if len(s.flight) > 0 {
		return
	}
	s.requireMirrors(t)
	for _, slot := range s.slots {
		settled := len(slot.inputs) == slot.exact && (s.busy(slot) || !slot.inUse && !slot.aborted)
		for _, c := range s.model.caches {
			if settled || c.memory == math.MaxInt32 {
				c.requireRows(t, slot.id, tokensOf(slot.inputs[:slot.exact]))
			}
		}
		if settled && s.states != nil && len(slot.inputs) > 0 {
			s.states.requireAfter(t, tokensOf(slot.inputs))
		}
	}
}

// requirePublic fails when the store has text of private requests.
func (s *memStore) requirePublic(t require.TestingT) {
	s.mu.Lock()
	defer s.mu.Unlock()
	require.False(t, s.private, "private text was stored")
}

// requireMirrors checks the cells of all slots, in caches with windows, too.
func (s *simulation) requireMirrors(t *rapid.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tiered.mu.Lock()
	defer s.tiered.mu.Unlock()
	for seq, mirror := range s.tiered.slots.of {
		now := *mirror
		now.from = slices.Clone(mirror.from)
		s.tiered.noteLostLocked(seq, &now)
		for g := range s.tiered.caches.groups {
			cache := s.tiered.caches.groups[g].Rows.(*fakeCache)
			held := cache.held()[seq]
			for pos := now.from[g]; pos < len(mirror.tokens); pos++ {
				if cell, ok := held[int32(pos)]; !ok || cell != mirror.cells[g][pos] {
					require.Fail(t, "", "slot %d group %d has dropped position %d of %d, not %d and before", seq, g, pos, len(mirror.tokens), now.from[g])
				}
			}
		}
	}
}

// requireStored fails when a full public page of one of the slots is missing in a store that has
// been healthy for a while. Where lossy pages are restored, one stands for the page.
func (s *simulation) requireStored(t *rapid.T, slots ...int) {
	s.tiered.mu.Lock()
	defer s.tiered.mu.Unlock()
	for seq, mirror := range s.tiered.slots.of {
		if !slices.Contains(slots, seq) {
			continue
		}
		for page, key := range mirror.keys {
			if (page+1)*8 <= mirror.private && !s.tiered.caches.hasNone(mirror, page*8) {
				stands := s.tiered.restorer.find.restoresLossy() && s.store.stands(key)
				require.True(t, stands || s.store.Has(key), "slot %d page %d of %d was never stored: pages %v, private from %d, rows from %v, %s", seq, page, len(mirror.keys), mirror.pages, mirror.private, mirror.from, s.tiered.queue.describe())
			}
		}
	}
}
