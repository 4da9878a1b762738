package llamatier

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func of(name byte, tokens []int32) Request {
	r := ask(tokens)
	r.Tenant[0] = name
	return r
}

// TestTenantsShareNothing: neither the slot nor the store nor a later server has a prompt for another tenant.
func TestTenantsShareNothing(t *testing.T) {
	w := newWorld(t, 1, 1000)
	for _, name := range []byte{1, 2, 0} {
		w.ask(of(name, prompt(1, 200)), 5)
		require.Zero(t, w.engine.cached, "tenant %d", name)
		w.idle()
	}
	w.killed()
	for _, name := range []byte{3, 1, 2, 0} {
		want := 199
		if name == 3 {
			want = 0
		}
		before := w.engine.cached // of all requests
		w.ask(of(name, prompt(1, 200)), 5)
		require.Equal(t, want, w.engine.cached-before, "tenant %d", name)
	}
}

// TestATenantKeepsItsSlot: the same tenant goes on in the slot, and Resume is for it alone.
func TestATenantKeepsItsSlot(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(of(1, prompt(1, 200)), 5)
	require.Nil(t, w.tier.Resume(context.Background(), w.last, of(2, nil)))
	w.ask(of(1, prompt(1, 300)), 5)
	require.GreaterOrEqual(t, w.engine.cached, 199)
}

// passOf sends a tenant's prompt in a slot that the engine chooses.
func (w *world) passOf(r Request, predict int) *Answer {
	end, err := w.tier.Pass(context.Background(), r.Tenant)
	require.NoError(w.t, err)
	a := w.engine.choose(r.Tokens).run(w.engine, context.Background(), r.Tokens, predict)
	end(true, true)
	return a
}

// TestRequestsInAnySlotFindNothingOfOthers, neither in slots nor behind them.
func TestRequestsInAnySlotFindNothingOfOthers(t *testing.T) {
	w := newWorld(t, 3, 1000)
	for _, name := range []byte{1, 2, 0, 3} {
		w.ask(of(name, prompt(1, 200)), 5)
		require.Zero(t, w.engine.cached)
		require.Zero(t, w.passOf(of(name+10, prompt(1, 200)), 5).Cached)
	}
	require.Equal(t, 199, w.passOf(of(13, prompt(1, 200)), 5).Cached, "its own")
}

// TestAPassingRequestWaitsForOthers, who wait for it, and each gets what it waits for.
func TestAPassingRequestWaitsForOthers(t *testing.T) {
	w := newWorld(t, 2, 1000)
	turn := w.begin(of(1, prompt(1, 200)))
	type pass struct{ end func(computed, heard bool) }
	passed, asked := make(chan pass), make(chan *Turn)
	go func() {
		end, err := w.tier.Pass(context.Background(), Tenant{2})
		require.NoError(t, err)
		passed <- pass{end}
	}()
	require.Eventually(t, func() bool { return w.tier.table.shutsOut(Tenant{1}) }, time.Minute, time.Millisecond)
	go func() { asked <- w.begin(of(1, prompt(2, 200))) }()
	ctx, leave := context.WithCancel(context.Background())
	left := beside(func() {
		_, err := w.tier.Pass(ctx, Tenant{3})
		require.ErrorIs(t, err, context.Canceled)
	})
	require.Eventually(t, func() bool { return w.waiting() == 3 }, time.Minute, time.Millisecond)
	select {
	case <-passed:
		t.Fatal("a request of another tenant runs")
	case <-asked:
		t.Fatal("another tenant's request has leave to run in any slot")
	default:
	}
	leave()
	<-left
	turn.End(w.engine.slots[turn.Slot()].complete(w.engine, context.Background(), prompt(1, 200), 5))
	p := <-passed
	require.Empty(t, w.engine.slots[0].tokens)
	require.Empty(t, w.engine.slots[1].tokens)
	p.end(true, true)
	(<-asked).End(nil)
	require.Zero(t, w.waiting())
	require.Zero(t, w.tier.table.passes)
}

// waiting is the number of requests that wait for a slot, or to pass.
func (w *world) waiting() int {
	w.tier.table.mu.Lock()
	defer w.tier.table.mu.Unlock()
	return len(w.tier.table.waiting)
}

// crowd are tenants before one engine, and what each has asked.
type crowd struct {
	*world
	mu    sync.Mutex
	asked map[Tenant][][]int32
	turns map[Tenant]Served
	said  map[Tenant][]int32
}

// slack is the number of tokens with which a prompt may go on by chance as an answer does.
const slack = 2

// asks notes a prompt, and returns its number among those of its tenant.
func (c *crowd) asks(r Request) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[r.Tenant] = append(c.asked[r.Tenant], r.Tokens)
	return len(c.asked[r.Tenant]) - 1
}

// found requires that an answer says nothing of prompts of others: its tenant has asked what it found, in other
// requests than this one.
func (c *crowd) found(r Request, number int, staged, answer *Answer) {
	if answer == nil {
		return
	}
	cached, most := answer.Cached, 0
	if staged != nil {
		cached = min(cached, staged.Cached)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.asked[r.Tenant] {
		if i != number {
			most = max(most, commonPrefix(other, r.Tokens))
		}
	}
	if cached > most+slack {
		c.t.Errorf("tenant %d finds %d tokens, and has asked %d", r.Tenant[0], cached, most)
	}
}

// ask sends a tenant's prompt, whose client may go away.
func (c *crowd) ask(r Request, predict int, gone bool) {
	number := c.asks(r)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.Cancel = cancel
	turn, err := c.tier.Begin(ctx, r)
	if errors.Is(err, ErrTaken) {
		c.pass(r, number, predict, gone)
		return
	}
	require.NoError(c.t, err)
	var s *fakeSlot
	if r.Loose {
		s = c.engine.choose(r.Tokens)
	} else {
		s = c.engine.slots[turn.Slot()]
		s.use.Lock()
		s.requests.Add(1)
	}
	if gone { // the engine goes on with it
		cancel()
		done := beside(func() { c.found(r, number, turn.Staged, s.run(c.engine, ctx, r.Tokens, 1000)) })
		turn.End(nil)
		<-done
		return
	}
	answer := s.run(c.engine, ctx, r.Tokens, predict)
	c.found(r, number, turn.Staged, answer)
	turn.End(answer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns[r.Tenant], c.said[r.Tenant] = turn.Served(), r.Tokens
}

// pass sends a tenant's prompt in a slot that the engine chooses.
func (c *crowd) pass(r Request, number, predict int, gone bool) {
	end, err := c.tier.Pass(context.Background(), r.Tenant)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := c.engine.choose(r.Tokens)
	if gone {
		cancel()
		done := beside(func() { c.found(r, number, nil, s.run(c.engine, ctx, r.Tokens, 1000)) })
		end(true, false)
		<-done
		return
	}
	c.found(r, number, nil, s.run(c.engine, ctx, r.Tokens, predict))
	end(true, true)
}

// resume goes on with the last prompt of another tenant, or with its own.
func (c *crowd) resume(r Request, last Tenant) {
	c.mu.Lock()
	served, said := c.turns[last], c.said[last]
	c.mu.Unlock()
	if said == nil {
		return
	}
	r.Tokens = append(slices.Clone(said), r.Tokens[:min(5, len(r.Tokens))]...)
	number := c.asks(r)
	r.Cancel = func() {}
	turn := c.tier.Resume(context.Background(), served, r)
	if turn == nil {
		return
	}
	answer := c.engine.slots[turn.Slot()].complete(c.engine, context.Background(), r.Tokens, 3)
	c.found(r, number, nil, answer)
	turn.Learn(r)
	if turn.TooLong {
		turn.Drop()
		return
	}
	turn.End(answer)
}

// TestRandomTenants: whatever tenants send, at the same time, and whoever goes away, no answer tells one of the
// prompts of another.
func TestRandomTenants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "kvtier-tenants-")
		require.NoError(rt, err)
		defer os.RemoveAll(dir)
		store := openStore(rt, dir)
		defer store.Close()
		slots := rapid.IntRange(1, 3).Draw(rt, "slots")
		c := &crowd{world: &world{t: rt, store: store, hybrid: rapid.Bool().Draw(rt, "hybrid")}, asked: map[Tenant][][]int32{}, turns: map[Tenant]Served{}, said: map[Tenant][]int32{}}
		restart := func() {
			c.start(slots, 256)
			p := &c.tier.patience
			p.leave, p.search, p.look = 0, 0, time.Millisecond
			c.tier.table.late = 0 // in these histories the engine has begun what is given up
			clear(c.said)
			if all := c.asked[Tenant{}]; len(all) > 0 {
				c.tier.Expect(all[len(all)-1])
			}
		}
		restart()
		for range rapid.IntRange(3, 20).Draw(rt, "steps") {
			switch step := rapid.SampledFrom(strings.Fields("requests requests requests requests idle restart")).Draw(rt, "step"); step {
			case "idle":
				c.idle()
			case "restart":
				c.tier.Flush(context.Background())
				restart()
			default:
				c.engine.whim = whims(rapid.IntRange(-1, 2).Draw(rt, "whim"))
				c.engine.late = rapid.IntRange(0, 20).Draw(rt, "late")
				var all []chan struct{}
				for range rapid.IntRange(1, 4).Draw(rt, "together") {
					all = append(all, beside(c.request(rt)))
				}
				for _, done := range all {
					<-done
				}
			}
		}
		c.tier.Flush(context.Background())
	})
}

// request draws a request of one of three tenants.
func (c *crowd) request(rt *rapid.T) func() {
	r := Request{Slot: -1, Tokens: slices.Concat(prompt(1, rapid.IntRange(1, 5).Draw(rt, "shared")*20), prompt(rapid.IntRange(2, 3).Draw(rt, "seed"), rapid.IntRange(0, 60).Draw(rt, "more")))}
	r.Tenant[0] = byte(rapid.IntRange(0, 2).Draw(rt, "tenant"))
	predict := rapid.IntRange(0, 5).Draw(rt, "predict")
	gone := rapid.IntRange(0, 4).Draw(rt, "gone") == 0
	other := Tenant{byte(rapid.IntRange(0, 2).Draw(rt, "other"))}
	switch rapid.SampledFrom(strings.Fields("ask ask named loose private pass resume")).Draw(rt, "kind") {
	case "named":
		r.Slot = rapid.IntRange(0, 2).Draw(rt, "slot")
	case "loose":
		r.Loose = true
	case "private":
		r.Private = true
	case "pass":
		return func() { c.pass(r, c.asks(r), predict, gone) }
	case "resume":
		return func() { c.resume(r, other) }
	}
	return func() { c.ask(r, predict, gone) }
}

// TestARequestThatMayBeginLate: the slot of a request that was given up is not another tenant's before the engine
// has begun it, or never will.
func TestARequestThatMayBeginLate(t *testing.T) {
	for name, giveUp := range map[string]func(w *world){
		"in a slot": func(w *world) { w.begin(of(1, prompt(1, 200))).End(nil) },
		"in any slot": func(w *world) {
			end, err := w.tier.Pass(context.Background(), Tenant{1})
			require.NoError(t, err)
			end(true, false)
		},
		"in the slot that the engine chooses": func(w *world) {
			r := loose(prompt(1, 200))
			r.Tenant = Tenant{1}
			w.begin(r).End(nil)
		},
	} {
		w := newWorld(t, 2, 1000)
		w.tier.patience.search, w.tier.patience.leave = time.Millisecond, time.Millisecond
		giveUp(w)
		w.tier.table.late = time.Hour
		for i := range w.tier.table.slots {
			ctx, stop := context.WithTimeout(context.Background(), 30*time.Millisecond)
			r := of(2, prompt(1, 200))
			r.Slot = i
			_, err := w.tier.Begin(ctx, r)
			if stop(); w.tier.table.slots[i].tenant == (Tenant{1}) || name != "in a slot" {
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
			}
		}
		w.tier.table.late = 0
		w.ask(of(2, prompt(1, 200)), 5)
		require.Zero(t, w.engine.cached, name)
	}
}

// TestNoWaitForEver: a request whose slot others keep is refused after some time.
func TestNoWaitForEver(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.tier.patience.apart = time.Millisecond
	turn := w.begin(of(1, prompt(1, 200)))
	_, err := w.tier.Pass(context.Background(), Tenant{2})
	require.ErrorIs(t, err, ErrSeparate)
	require.Zero(t, w.tier.table.passes)
	turn.Drop()
	end, err := w.tier.Pass(context.Background(), Tenant{1})
	require.NoError(t, err)
	_, err = w.tier.Begin(context.Background(), of(2, prompt(1, 200)))
	require.ErrorIs(t, err, ErrSeparate)
	require.Zero(t, w.waiting())
	end(true, true)
	w.tier.patience.apart = time.Minute
	w.engine.refuseNext("/slots/0?action=erase", 3)
	w.ask(of(2, prompt(1, 200)), 5)
	require.Zero(t, w.engine.cached)
}
