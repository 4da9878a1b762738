package kvcache

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// coldPages are the lossy pages and tails of a memStore. memStore.mu guards them.
type coldPages struct {
	pages  map[pagefile.Key]*pagefile.Page
	tails  map[pagefile.Key][]*pagefile.Page // by parent
	looked int                               // number of look-ups
}

// add keeps a page with rows of which no byte is that of the exact one.
func (c *coldPages) add(exact *pagefile.Page) {
	page := *exact
	page.Payload = slices.Clone(exact.Payload)
	for i, sec := range page.Layout.Sections() {
		if sec.Kind != pagefile.KindK && sec.Kind != pagefile.KindV {
			continue
		}
		rows := page.Layout.Rows(page.Payload, i)
		for j := range rows {
			rows[j] ^= 0x11
		}
	}
	if c.pages == nil {
		c.pages, c.tails = make(map[pagefile.Key]*pagefile.Page), make(map[pagefile.Key][]*pagefile.Page)
	}
	if len(page.Tokens) == 8 {
		c.pages[pagefile.ChainKey(page.Parent, page.Tokens, page.Media)] = &page
	} else {
		c.tails[page.Parent] = append(c.tails[page.Parent], &page)
	}
}

// after are the tails and pages after a page.
func (c *coldPages) after(parent pagefile.Key) []*pagefile.Page {
	after := slices.Clone(c.tails[parent])
	for _, page := range c.pages {
		if page.Parent == parent {
			after = append(after, page)
		}
	}
	return after
}

// find is the page of a ref, or nil.
func (c *coldPages) find(ref diskstore.Ref) *pagefile.Page {
	if !ref.Tail {
		return c.pages[ref.Key]
	}
	for _, tail := range c.tails[ref.Parent] {
		if pagefile.ChainKey(ref.Parent, tail.Tokens, tail.Media) == ref.Key {
			return tail
		}
	}
	return nil
}

// stands reports whether a lossy page stands for the exact one.
func (s *memStore) stands(key pagefile.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cold.pages[key] != nil
}

// cool makes the pages and tails at a position lossy, and drops the exact ones unless they stay. cool
// returns their number.
func (s *memStore) cool(start int, stay bool) (cooled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, page := range s.pages {
		if int(page.Start) != start {
			continue
		}
		cooled++
		s.cold.add(page)
		if !stay {
			delete(s.pages, key)
		}
	}
	for parent, tails := range s.tails {
		for _, tail := range tails {
			if int(tail.Start) == start {
				cooled++
				s.cold.add(tail)
			}
		}
		if !stay && len(tails) > 0 && int(tails[0].Start) == start {
			delete(s.tails, parent)
		}
	}
	return cooled
}

// requireNearlyHeld checks that a slot holds exact rows up to a position, and other rows behind it.
func (r *fakeRunner) requireNearlyHeld(slot *fakeSlot, exact int) {
	r.cache.requireRows(r.t, slot.id, tokensOf(slot.inputs[:exact]))
	require.Greater(r.t, len(slot.inputs), exact)
	held := r.cache.held()[slot.id]
	r.device.later(func() {
		for s, n := range r.cache.sections() {
			want := wantRows(s, r.cache.window, tokensOf(slot.inputs), n)
			for pos := exact; pos < len(slot.inputs); pos++ {
				require.NotEqual(r.t, want[pos], r.cache.row(s, held[int32(pos)]), "position %d", pos)
			}
		}
	})
}

// cooled is a runner whose store has a text of 44 tokens: 5 pages and a tail, those from `from` on
// lossy. The slot is empty.
func cooled(t *testing.T, from int, opts Options) (*fakeRunner, *memStore, []int32) {
	store := newMemStore(t)
	text := tokenRange(1, 44)
	r := newFakeRunner(t, store, 2, 128, opts)
	r.run(r.slots[0], text, nil, true)
	r.run(r.slots[0], tokenRange(2, 3), nil, false) // and not its first tokens
	r.flush()
	require.Equal(t, []int{0, 1, 2, 3, 4}, store.wrote)
	for start := 8 * from; start < len(text); start += 8 {
		require.Positive(t, store.cool(start, false))
	}
	store.wrote, store.cold.looked = nil, 0
	return r, store, text
}

// A prompt goes on with lossy pages behind the exact ones, and nothing behind them is stored.
func TestLossyPagesAreRestored(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	slot := r.slots[0]
	prompt := append(slices.Clone(text), tokenRange(3, 30)...)
	restored := r.run(slot, prompt, tokenRange(4, 5), true)
	require.Equal(t, []int{44, 44, 28, 0}, []int{restored.Held, restored.Tokens, restored.Lossy, restored.Shifted})
	require.EqualValues(t, 28, r.tiered.Stats().LossyTokens)
	r.requireNearlyHeld(slot, 16)
	r.flush()
	require.Empty(t, store.wrote)
	require.Equal(t, 44, store.storedPast()+28, "no tail either")
	prompts := r.prompts()
	p := prompts[len(prompts)-1]
	require.Equal(t, []int{28, 44, 30}, []int{p.Lossy, p.Local, p.Computed})

	// The next turn goes on in the slot, which stays as it is.
	restored = r.run(slot, slices.Concat(prompt, tokenRange(4, 5), tokenRange(5, 20)), nil, true)
	require.Zero(t, restored.Tokens)
	r.flush()
	require.Empty(t, store.wrote)
	rows := r.tiered.Slots()[0]
	require.True(t, rows.Lossy && rows.Shifted)
	require.Equal(t, 16, rows.Tokens)
}

// A slot that keeps only tokens before the first lossy one is exact again.
func TestASlotIsExactBeforeItsLossyPart(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	slot := r.slots[0]
	require.Equal(t, 28, r.run(slot, append(slices.Clone(text), tokenRange(3, 9)...), nil, true).Lossy)
	other := append(slices.Clone(text[:14]), tokenRange(4, 30)...)
	require.Zero(t, r.run(slot, other, nil, true).Lossy)
	r.cache.requireRows(t, slot.id, other)
	r.flush()
	require.Equal(t, []int{1, 2, 3, 4}, store.wrote)
	require.False(t, r.tiered.Slots()[0].Lossy)
}

// A lossy page goes on in the middle of a page whose first rows the slot has.
func TestLossyRowsBehindExactOnesOfAPage(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	slot := r.slots[0]
	r.run(slot, append(slices.Clone(text[:20]), 7), nil, false)
	require.Equal(t, 20, r.run(slot, append(slices.Clone(text[:20]), 8), nil, false).Held)
	restored := r.run(slot, append(slices.Clone(text), tokenRange(3, 9)...), nil, true)
	require.Equal(t, []int{44, 24, 24}, []int{restored.Held, restored.Tokens, restored.Lossy})
	r.requireNearlyHeld(slot, 20)
	r.flush()
	require.Empty(t, store.wrote)
}

// A copy of a slot is lossy where the slot is.
func TestCopiesOfALossySlot(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	require.Equal(t, 28, r.run(r.slots[0], append(slices.Clone(text), tokenRange(3, 9)...), nil, true).Lossy)
	lossy := append(slices.Clone(text[:40]), tokenRange(4, 30)...)
	require.Equal(t, 40, r.fork(r.slots[1], lossy))
	r.run(r.slots[1], lossy, nil, true)
	r.requireNearlyHeld(r.slots[1], 16)
	require.True(t, r.tiered.Slots()[1].Lossy)
	r.flush()
	require.Empty(t, store.wrote)
	exact := append(slices.Clone(text[:15]), tokenRange(5, 30)...)
	require.Equal(t, 15, r.fork(r.slots[1], exact))
	r.run(r.slots[1], exact, nil, true)
	r.cache.requireRows(t, 1, exact)
	r.flush()
	require.Equal(t, []int{1, 2, 3, 4}, store.wrote)
}

// Exact pages are used as far as they go, and lossy ones only where they go a page further.
func TestExactPagesComeFirst(t *testing.T) {
	r, store, text := cooled(t, 5, Options{Lossy: true}) // the tail alone is lossy
	restored := r.run(r.slots[0], append(slices.Clone(text), tokenRange(3, 9)...), nil, true)
	require.Equal(t, []int{40, 0}, []int{restored.Held, restored.Lossy})
	r.flush()
	require.Equal(t, []int{5}, store.wrote)

	r, store, text = cooled(t, 0, Options{Lossy: true})
	require.Zero(t, r.run(r.slots[0], text[:8], nil, false).Held, "all but the last token are less than a page")
	require.Zero(t, store.cold.looked)
	require.Equal(t, 8, r.run(r.slots[1], text[:9], nil, true).Lossy)
}

// Lossy pages replace rows of the slot only where they go a page further, and exact pages all rows
// that are not exact.
func TestExactPagesReplaceLossyRows(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	slot := r.slots[0]
	require.Equal(t, 27, r.run(slot, text, nil, true).Lossy)
	reads := store.reads
	require.Zero(t, r.run(slot, text, nil, true).Tokens, "the same rows again")
	require.Equal(t, reads, store.reads)

	other := newFakeRunner(t, store, 1, 128, Options{}) // another server computes the text
	other.run(other.slots[0], text, nil, true)
	other.flush()
	restored := r.run(slot, append(slices.Clone(text), tokenRange(3, 9)...), nil, true)
	require.Equal(t, []int{44, 0}, []int{restored.Held, restored.Lossy})
	r.cache.requireRows(t, slot.id, tokensOf(slot.inputs))
	require.False(t, r.tiered.Slots()[0].Lossy)
}

// Without Options.Lossy, and in models with windows or state, no lossy page is looked up.
func TestLossyPagesAreNotLookedUp(t *testing.T) {
	for name, start := range map[string]func(store *memStore) *fakeRunner{
		"off": func(store *memStore) *fakeRunner { return newFakeRunner(t, store, 1, 128, Options{}) },
		"window": func(store *memStore) *fakeRunner {
			return newWindowedRunner(t, store, 1, 128, Options{Lossy: true})
		},
		"state": func(store *memStore) *fakeRunner {
			return newHybridRunner(t, store, Options{Lossy: true}).fakeRunner
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemStore(t)
			r := start(store)
			r.save(r.slots[0], tokenRange(1, 44))
			for at := 0; at < 44; at += 8 {
				store.cool(at, false)
			}
			r.run(r.slots[0], tokenRange(2, 40), nil, true)
			require.Zero(t, r.run(r.slots[0], tokenRange(1, 44), nil, true).Lossy)
			require.Zero(t, store.cold.looked)
		})
	}
}

// Text of lossy pages is not reused at another position.
func TestLossyPagesAreNotIndexed(t *testing.T) {
	r, _, text := cooled(t, 2, Options{Lossy: true})
	index := runs.New(8, 1<<20)
	r.tiered.restorer.runs, r.tiered.sealer.index, r.tiered.restorer.find.index = index, index, index
	require.Equal(t, 28, r.run(r.slots[0], append(slices.Clone(text), tokenRange(3, 20)...), nil, true).Lossy)
	require.Equal(t, 2, index.Len(), "the exact pages")
}

// A slot that is filled with lossy pages while the model loads is as lossy as one that is filled for
// a request.
func TestASlotIsFilledWithLossyPages(t *testing.T) {
	old, store, text := cooled(t, 2, Options{Lossy: true})
	old.tiered.Close()
	r := newFakeRunner(t, store, 2, 128, Options{Lossy: true})
	r.fillAll(text)
	require.Equal(t, 16, r.slots[0].exact)
	require.Equal(t, 30, r.fork(r.slots[1], append(slices.Clone(text[:30]), 7)))
	restored := r.run(r.slots[1], append(slices.Clone(text[:30]), tokenRange(3, 30)...), nil, true)
	require.Equal(t, []int{30, 14}, []int{restored.Early, restored.Lossy})
	restored = r.run(r.slots[0], append(slices.Clone(text), tokenRange(3, 30)...), nil, true)
	require.Equal(t, []int{44, 28}, []int{restored.Early, restored.Lossy})
	r.flush()
	require.Empty(t, store.wrote)
}

// Lossy rows that came while the model loaded are replaced by a longer chain, and count once.
func TestEarlyLossyRowsAreReplaced(t *testing.T) {
	old, _, text := cooled(t, 2, Options{Lossy: true})
	store := old.tiered.opts.Store
	old.tiered.Close()
	r := newFakeRunner(t, store, 1, 128, Options{Lossy: true})
	r.fillAll(text[:24])
	restored := r.run(r.slots[0], append(slices.Clone(text), tokenRange(3, 30)...), nil, true)
	require.Equal(t, []int{44, 44, 16, 28}, []int{restored.Held, restored.Tokens, restored.Early, restored.Lossy})
}

// A lossy page that cannot be read is computed.
func TestALossyPageIsDamaged(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	store.setsAside, store.readErr = true, map[int]error{3: pagefile.ErrDamaged}
	restored := r.run(r.slots[0], append(slices.Clone(text), tokenRange(3, 9)...), nil, true)
	require.Equal(t, []int{24, 8}, []int{restored.Held, restored.Lossy})
	r.requireNearlyHeld(r.slots[0], 16)
	r.flush()
	require.Empty(t, store.wrote)
}

// Where computing is quicker than reading, a lossy page is computed and stored as an exact one.
func TestLossyPagesThatAreComputed(t *testing.T) {
	r, store, text := cooled(t, 2, Options{Lossy: true})
	r.tiered.gate.Always = false
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	// A probe behind the plan for the exact pages could end before the plan for lossy ones.
	n, _ := r.tiered.rates.Probe(rates.Chain{Pages: []rates.Page{{Tokens: 8, Bytes: 1, Tier: "local"}}}, 1)
	require.Equal(t, 1, n)
	require.Zero(t, r.run(r.slots[0], text, nil, true).Held)
	require.Equal(t, 1, store.cold.looked)
	r.cache.requireRows(t, 0, text)
	r.flush()
	require.Equal(t, []int{2, 3, 4}, store.wrote)
	require.False(t, r.tiered.Slots()[0].Lossy)
}

// Text behind lossy pages is not stored, and a later prompt learns that.
func TestWhyBehindLossyPages(t *testing.T) {
	r, _, text := cooled(t, 2, Options{Lossy: true, Recents: why.NewRecents()})
	prompt := append(slices.Clone(text), tokenRange(3, 40)...)
	require.Equal(t, 28, r.run(r.slots[0], prompt, nil, true).Lossy)
	r.flush()
	require.Equal(t, 28, r.run(r.slots[1], append(prompt, 7), nil, true).Lossy)
	require.Contains(t, r.requireMiss(telemetry.CauseEvicted, 44).Detail, "behind lossy pages")
}

// A slot does not store its exact rows again where a lossy page stands for them, unless that page
// cannot be read.
func TestPagesThatBecameLossyAreNotStoredAgain(t *testing.T) {
	store := newMemStore(t)
	store.setsAside = true
	r := newFakeRunner(t, store, 2, 128, Options{Lossy: true})
	prompt := tokenRange(1, 44)
	for turn := range 4 {
		r.run(r.slots[0], prompt, nil, true)
		prompt = append(slices.Clone(prompt), tokenRange(10+turn, 10)...)
		r.flush()
		for start := 0; start < 24; start += 8 {
			store.cool(start, false)
		}
	}
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}, store.wrote, "each once")
	require.Equal(t, 74, r.run(r.slots[1], append(slices.Clone(prompt[:74]), 7), nil, true).Lossy, "and all are found")

	store.wrote, store.readErr = nil, map[int]error{1: pagefile.ErrDamaged}
	r.run(r.slots[1], tokenRange(2, 3), nil, false)
	require.Equal(t, 8, r.run(r.slots[1], append(slices.Clone(prompt[:74]), 7), nil, false).Lossy)
	store.readErr = nil
	r.save(r.slots[0], prompt)
	require.Equal(t, []int{1, 9}, store.wrote)
	r.cache.requireRows(t, 0, prompt)
}
