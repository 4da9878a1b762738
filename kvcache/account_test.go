package kvcache

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// checkAccount checks the account of a prompt whose restore has ended.
func (r *fakeRunner) checkAccount(slot int, restored Restored) {
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	a := r.tiered.accounts.open[slot]
	require.NotNil(r.t, a)
	require.Equal(r.t, restored.Held, a.from.End(), "%+v of %+v", a.from, restored)
	var p telemetry.Prompt
	a.from.CountIn(&p)
	require.Equal(r.t, restored.Shifted, p.Shifted)
	require.Equal(r.t, restored.Lossy, a.from.Lossy())
	require.Equal(r.t, restored.Tokens, p.RAM+p.Local+p.Remote+p.Shifted, "%+v of %+v", a.from, restored)
}

// checkAccounts checks that each prompt's tokens come from somewhere, and that no total has fallen.
// ended: every prompt was recorded.
func (r *fakeRunner) checkAccounts(t require.TestingT, ended bool) {
	r.tiered.why.Wait(time.Minute)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	r.checkAccountsLocked(t, ended)
}

func (r *fakeRunner) checkAccountsLocked(t require.TestingT, ended bool) {
	totals, prompts := r.meter.Read()
	for series, was := range r.totals {
		if totals[series] < was {
			require.Fail(t, "", "%s fell from %v to %v", series, was, totals[series])
		}
	}
	r.totals = totals
	for _, p := range prompts {
		sum := p.Slot + p.RAM + p.Local + p.Remote + p.Shifted + p.Computed
		if sum != p.Tokens || min(p.Slot, p.RAM, p.Local, p.Remote, p.Shifted) < 0 || p.Computed < 1 || p.Saved < 0 || p.Lossy < 0 || p.Lossy > p.RAM+p.Local+p.Remote {
			require.Fail(t, "", "%+v", p)
		}
	}
	open, tokens := 0, 0.0
	for _, a := range r.tiered.accounts.open {
		open, tokens = open+1, tokens+float64(a.tokens)
	}
	for _, f := range r.tiered.inFlight.built {
		for _, a := range f.prompts {
			open, tokens = open+1, tokens+float64(a.tokens)
		}
	}
	if ended {
		require.Zero(t, open)
	}
	require.EqualValues(t, r.asked, totals["ollama_kv_prompts_total"]+float64(open), "each prompt is recorded once")
	for series, n := range totals {
		if strings.HasPrefix(series, "ollama_kv_prompt_tokens_total") {
			tokens += n
		}
	}
	require.EqualValues(t, r.tokens, tokens)
}

// prompts are the recorded ones, without times.
func (r *fakeRunner) prompts() []telemetry.Prompt {
	_, prompts := r.meter.Read()
	for i := range prompts {
		p := &prompts[i]
		require.False(r.t, p.At.IsZero())
		p.At, p.Seq, p.Restore, p.Took, p.Saved = time.Time{}, 0, 0, 0, 0
	}
	return prompts
}

// last is the prompt that was recorded last.
func (r *fakeRunner) last() telemetry.Prompt {
	_, prompts := r.meter.Read()
	return prompts[len(prompts)-1]
}

// TestAPromptFromEveryPlace: a prompt's tokens come from the slot, from memory, from both tiers, or
// are computed; pages are counted by the tier that they were read from.
func TestAPromptFromEveryPlace(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text, more := tokenRange(1, 53), tokenRange(2, 9)
	r := newFakeRunner(t, newDiskStore(t, root), 2, 128, Options{})
	r.save(r.slots[0], text)
	r.run(r.slots[0], slices.Concat(text, more), nil, false)
	r.save(r.slots[1], slices.Concat(text[:44], more))
	require.Equal(t, []telemetry.Prompt{
		{ID: 0, Tokens: 53, Computed: 53},
		{ID: 0, Tokens: 62, Slot: 53, Computed: 9, Private: true},
		{ID: 1, Tokens: 53, Local: 44, Computed: 9},
	}, r.prompts())
	totals, _ := r.meter.Read()
	require.Equal(t, 6.0, totals[moved("local", "slot")])
	require.Equal(t, 6.0, totals[`ollama_kv_page_faults_total{tier="local"}`])
	require.Equal(t, 6.0, totals[`ollama_kv_gate_pages_total{decision="read"}`])
	require.Equal(t, 7.0, totals[`ollama_kv_sealed_pages_total{kind="page"}`])
	require.Equal(t, 2.0, totals[`ollama_kv_sealed_pages_total{kind="tail"}`])
	require.Equal(t, float64(r.tiered.Stats().RestoredBytes), totals[restoredBytes])
	r.tiered.Close()

	// The pages are in a remote tier now, and from then on in memory.
	far := newDiskStore(t, filepath.Join(t.TempDir(), "near"), func(o *diskstore.Options) {
		o.Remote.Root, o.RAM.BudgetBytes = root, 1<<30
	})
	r = newFakeRunner(t, far, 2, 128, Options{})
	r.run(r.slots[0], slices.Concat(text, more), nil, true)
	r.run(r.slots[1], slices.Concat(text, tokenRange(3, 3)), nil, true)
	require.Equal(t, []telemetry.Prompt{
		{ID: 0, Tokens: 62, Remote: 53, Computed: 9},
		{ID: 1, Tokens: 56, RAM: 53, Computed: 3},
	}, r.prompts())
	totals, _ = r.meter.Read()
	require.Equal(t, 7.0, totals[moved("remote", "slot")])
	require.Equal(t, 7.0, totals[moved("ram", "slot")])
	require.Equal(t, 7.0, totals[`ollama_kv_page_faults_total{tier="remote"}`])
	require.Zero(t, totals[`ollama_kv_page_faults_total{tier="ram"}`], "memory has no faults")
	require.Equal(t, 14.0, totals[`ollama_kv_gate_pages_total{decision="read"}`])
}

func TestAShiftedPromptAndAFilledOne(t *testing.T) {
	r, _, history := newReusingRunner(t, newFakeRunner)
	r.run(r.slots[1], leftOut(history, 20, 32), nil, true)
	p := r.last()
	require.Equal(t, []int{20, 28, 7}, []int{p.Local, p.Shifted, p.Computed})

	r, _, text := storedBefore(t, 1, 256, Options{Poison: true})
	r.fillAll(text)
	prompt := slices.Concat(text[:30], tokenRange(3, 9))
	require.Equal(t, 30, r.run(r.slots[0], prompt, nil, true).Early)
	r.cache.requireRows(t, 0, prompt)
	require.Equal(t, []telemetry.Prompt{{Tokens: 39, Local: 30, Computed: 9}}, r.prompts(), "they came before the request")
	r.run(r.slots[0], slices.Concat(prompt, tokenRange(4, 2)), nil, true)
	require.Equal(t, 39, r.last().Slot, "and once")
}

// TestSavedTime: the time of computing the prompt, less all that it took.
func TestSavedTime(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 2, 128, Options{})
	text := tokenRange(1, 53)
	r.save(r.slots[0], text)
	require.Zero(t, r.last().Restore, "nothing was restored")
	require.Positive(t, r.last().Took)

	require.NoError(t, r.tiered.rates.Close())
	r.cost(rates.New()) // knows nothing
	r.tiered.gate.Always = true
	r.load(r.slots[1], text[:40], true)
	r.tiered.endAccounts()
	require.Zero(t, r.last().Saved)
	require.Positive(t, r.last().Restore)
	r.complete(r.slots[1])

	r.cost(rates.New())
	r.tiered.rates.Computed(512, 256, time.Hour)
	r.load(r.slots[1], slices.Concat(text, text), true)
	computing := r.tiered.rates.Computing(40, 2*len(text)) // the slot has the first 40
	r.drain()
	p := r.last()
	require.Equal(t, 40, p.Slot)
	require.Greater(t, p.Took, p.Restore)
	require.LessOrEqual(t, p.Saved+p.Took, computing, "its own batches may have been measured since")
	slots := r.tiered.Slots()
	require.Equal(t, p.Saved, slots[1].Saved)
	require.Equal(t, 13, slots[1].Restored)
	require.Equal(t, p.At.Add(p.Restore), slots[1].LastRestore)
}

// A prompt that does not end is recorded as well.
func TestPromptsThatDoNotEnd(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	text, slot := tokenRange(1, 60), r.slots[0]
	r.run(slot, text, nil, true)
	r.save(slot, tokenRange(2, 9))

	ctx, cancel := context.WithCancel(t.Context())
	store.onRead = func(page int) {
		if page == 2 {
			cancel()
		}
	}
	_, err := r.loadContext(ctx, slot, inputsOf(text), true)
	require.ErrorIs(t, err, context.Canceled)
	store.onRead = nil
	p := r.last()
	require.Zero(t, p.Took)
	require.True(t, p.Private, "nobody has said that it is not")
	require.Positive(t, p.Local)

	// The request goes away after one of its batches.
	r.load(slot, tokenRange(3, 60), true)
	r.build()
	r.compute()
	r.finish(slot)
	p = r.last()
	require.Equal(t, []int{60, 60, 0}, []int{p.Tokens, p.Computed, int(p.Took)})
	require.False(t, p.Private)

	// Its last batch is built when the request ends, as with one token to answer.
	r.load(slot, tokenRange(4, 5), true)
	r.build()
	r.finish(slot)
	require.Equal(t, p, r.last())
	r.compute()
	require.Equal(t, 5, r.last().Tokens)
	require.Positive(t, r.last().Took)

	// The model is unloaded.
	r.load(slot, tokenRange(5, 7), true)
	r.build()
	r.tiered.Close()
	require.Equal(t, 7, r.last().Tokens)
	require.Zero(t, r.last().Took)
}

// TestSlotsTellWhereTheirPagesAre names the places of pages, as far as they are known without I/O.
func TestSlotsTellWhereTheirPagesAre(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text := tokenRange(1, 53)
	r := newFakeRunner(t, newDiskStore(t, root), 1, 128, Options{})
	require.Empty(t, r.tiered.Slots())
	r.load(r.slots[0], text, true)
	require.True(t, r.tiered.Slots()[0].Busy)
	r.complete(r.slots[0])
	r.flush()
	require.Equal(t, []telemetry.Slot{{Tokens: 53, Bytes: 53 * r.tiered.tokenBytes(), Hot: 7, Cold: 7}}, r.tiered.Slots())
	r.tiered.Close()

	far := newDiskStore(t, filepath.Join(t.TempDir(), "near"), func(o *diskstore.Options) {
		o.Remote.Root, o.RAM.BudgetBytes = root, 1<<30
	})
	r = newFakeRunner(t, far, 1, 128, Options{})
	r.run(r.slots[0], slices.Concat(text[:48], tokenRange(2, 9)), nil, true)
	slot := r.tiered.Slots()[0]
	require.Equal(t, 48, slot.Restored)
	require.False(t, slot.LastRestore.IsZero())
	slot.LastRestore = time.Time{}
	r.flush()
	slot = r.tiered.Slots()[0]
	require.Equal(t, telemetry.Slot{Tokens: 57, Bytes: 57 * r.tiered.tokenBytes(), Hot: 8, Warm: 7, Cold: 2, Remote: 6, Restored: 48, LastRestore: slot.LastRestore}, slot)

	r.shift(r.slots[0], 8, 16)
	slot = r.tiered.Slots()[0]
	require.True(t, slot.Shifted)
	require.Equal(t, []int{8, 1}, []int{slot.Tokens, slot.Hot})
}

// Layers whose window has moved on hold few rows of a text, others all of them.
func TestHotCountsTheRowsOfEachLayer(t *testing.T) {
	r := newWindowedRunner(t, newMemStore(t), 1, 128, Options{})
	r.run(r.slots[0], tokenRange(1, 80), nil, true)
	const layerRow = fakeKeyBytes + fakeValueBytes
	held, visible := int64(0), int64(0) // rows in the caches, and those that a batch attends to
	for _, c := range r.model.caches {
		for _, cell := range c.cells {
			held += int64(len(cell.seqs) * c.layers * layerRow)
		}
		visible += int64(min(80, c.window)) * int64(c.layers*layerRow)
	}
	slot := r.tiered.Slots()[0]
	require.LessOrEqual(t, slot.Bytes, held, "rows before a window may be in the cache still")
	require.GreaterOrEqual(t, slot.Bytes, visible)
	require.Less(t, slot.Bytes, 80*r.tiered.tokenBytes())
	require.Less(t, slot.Hot, 80/8)
	require.Equal(t, r.tiered.caches.pagesOf(slot.Bytes, 8), slot.Hot)
}

// spillingCache has the rows of its first cells in memory, and others on a disk.
type spillingCache struct {
	*fakeCache
	inMemory int32
}

var _ RowHolder = (*spillingCache)(nil)

func (c *spillingCache) HeldBytes(cells []int32) (sum int64, ok bool) {
	for _, cell := range cells {
		if cell < c.inMemory {
			sum += int64(c.layers) * (fakeKeyBytes + fakeValueBytes)
		}
	}
	return sum, c.inMemory >= 0
}

// Pages that are on the spill disk are not hot: three of ten fit in memory.
func TestHotIsNotOnTheSpill(t *testing.T) {
	for inMemory, hot := range map[int32]int{24: 3, 0: 0, 1: 1, 1000: 10, -1: 10} {
		r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
		r.tiered.caches.groups[0].Rows = &spillingCache{r.cache, inMemory}
		r.run(r.slots[0], tokenRange(1, 80), nil, true)
		require.Equal(t, hot, r.tiered.Slots()[0].Hot, "cells before %d are in memory", inMemory)
	}
}

// TestMemoryIsCounted compares the wrapper's list with the buffers, and with the heap.
func TestMemoryIsCounted(t *testing.T) {
	store := newMemStore(t)
	store.hold = make(chan struct{})
	r := newFakeRunner(t, store, 1, 128, Options{QueuedBytes: 1 << 20, Runs: runs.New(8, 100)})
	r.begin(r.slots[0], tokenRange(1, 53), true)
	memory := func() map[string]telemetry.Memory {
		by := make(map[string]telemetry.Memory)
		for _, m := range r.tiered.Memory() {
			by[m.Name] = m
		}
		return by
	}
	before := memory()
	layout, err := r.tiered.caches.layout(8, func(int) bool { return true })
	require.NoError(t, err)
	require.EqualValues(t, 6*layout.Size(), before["write queue"].Bytes, "six pages wait")
	require.EqualValues(t, len(r.tiered.queue.copier.buffer)+len(r.tiered.sealer.bounce), before["copy buffers"].Bytes)
	require.EqualValues(t, 1<<20, before["write queue"].Limit+before["copy buffers"].Bytes)
	require.EqualValues(t, 6*(4*8+300), before["index of moved text"].Bytes)
	require.GreaterOrEqual(t, before["texts of slots"].Bytes, int64(53*8))

	close(store.hold)
	r.finish(r.slots[0])
	r.flush()
	after := memory()
	require.LessOrEqual(t, after["write queue"].Bytes, int64(spareBuffersMax*layout.Size()), "buffers that are kept for reuse")

	var heap runtime.MemStats
	held := func() uint64 {
		runtime.GC() // the first one leaves the memory of pools
		runtime.GC()
		runtime.ReadMemStats(&heap)
		return heap.HeapAlloc
	}
	const size = 64 << 20
	r.tiered.queue.most = 2 * size
	empty := held()
	payload := r.tiered.queue.stage(size, true)
	r.tiered.queue.mu.Lock()
	r.tiered.queue.spare = [][]byte{payload}
	r.tiered.queue.mu.Unlock()
	payload = nil
	require.EqualValues(t, size, memory()["write queue"].Bytes)
	require.InDelta(t, size, float64(held()-empty), size/4)
}

// TestAReportOfTheWrapper has its counters, its queue and its slots.
func TestAReportOfTheWrapper(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	r.save(r.slots[0], tokenRange(1, 53))
	source := telemetry.Source{Meter: r.meter, Fill: r.tiered.Fill}
	report := source.Report()
	for series := range report.Totals {
		requireKnown(t, series)
	}
	for series := range report.Gauges {
		requireKnown(t, series)
	}
	require.Zero(t, report.Gauges["ollama_kv_queue_pages"])
	require.EqualValues(t, r.tiered.queue.most, report.Gauges["ollama_kv_queue_limit_bytes"])
	require.Len(t, report.Slots, 1)
	sum := 0
	for s, size := range r.cache.sections() {
		_ = s
		sum += size
	}
	require.EqualValues(t, sum, report.Model.TokenBytes)
	require.Equal(t, report.Model.TokenBytes, TokenBytes(r.model.rows(), nil, 2))
	require.Zero(t, TokenBytes(r.model.rows(), nil, 3), "a cache has no memory yet")
}

// requireKnown fails for a series whose metric telemetry does not list.
func requireKnown(t *testing.T, series string) {
	name, _, _ := strings.Cut(series, "{")
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if _, ok := telemetry.Find(strings.TrimSuffix(name, suffix)); ok {
			return
		}
	}
	require.Fail(t, "", "no metric has the series %s", series)
}

// TestClosingDuringARestore records the prompt once, and the restore ends as any other.
func TestClosingDuringARestore(t *testing.T) {
	for name, opts := range map[string]Options{"counted": {}, "explained": {Recents: why.NewRecents()}} {
		t.Run(name, func(t *testing.T) {
			store, text := newMemStore(t), tokenRange(1, 53)
			stored(t, store, newFakeRunner, text)
			reading, hold := make(chan struct{}, 100), make(chan struct{})
			store.onRead = func(int) { reading <- struct{}{}; <-hold }
			r := newFakeRunner(t, store, 1, 256, opts)
			done := make(chan error)
			prompt := inputsOf(append(slices.Clone(text), 7))
			go func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				_, err := r.restore(context.Background(), &r.mu, 0, 0, prompt, func(int) {})
				done <- err
			}()
			<-reading
			r.tiered.Close()
			close(hold)
			require.NoError(t, <-done)
			totals, _ := r.meter.Read()
			require.Equal(t, 1.0, totals["ollama_kv_prompts_total"])
		})
	}
}

// TestWhyGivenUpLater: a page that could not be stored after the look-up is no reason for the miss.
func TestWhyGivenUpLater(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{Recents: why.NewRecents()})
	text := tokenRange(1, 60)
	r.load(r.slots[0], text, true)
	keys := r.tiered.why.PageKeys(why.Text{Tokens: text}, 0)
	r.tiered.mu.Lock()
	r.tiered.why.givenLocked(keys[0], givenCap) // the batch before the prompt's last one was sealed
	r.tiered.mu.Unlock()
	r.complete(r.slots[0])
	r.requireMiss(telemetry.CauseNeverSeen, 0)
}
