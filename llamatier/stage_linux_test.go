package llamatier

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/rates"
)

func TestTheEndOfATurn(t *testing.T) {
	g := &stages{control: control}
	text := prompt(1, 100)
	for want, tokens := range map[int][]int32{
		100: slices.Concat(text, opening),
		103: slices.Concat(text, opening, opening),
		0:   text,
		102: slices.Concat(text, []int32{1, 2, 1010}),
		1:   {5, 1010},
	} {
		require.Equal(t, want, g.turnEnd(tokens))
	}
	require.Zero(t, g.turnEnd(slices.Concat(opening, text)), "the opening is not at the end")
	require.Zero(t, g.turnEnd(nil))
	require.Equal(t, 100, g.turnEnd(slices.Concat(text, []int32{1010}, make([]int32, answerOpening-1))))
	require.Zero(t, g.turnEnd(slices.Concat(text, []int32{1010}, make([]int32, answerOpening))))
}

// TestWhereChatsPart: before a user's first message, or before the part of a chat in which a stored
// prompt goes on in another way.
func TestWhereChatsPart(t *testing.T) {
	g := &stages{control: control, user: []int32{1011, 7}}
	text := prompt(1, 300)
	chat := slices.Concat(text, g.user, text, []int32{1010}, text, g.user, text)
	require.Equal(t, 300, g.firstUser(chat))
	require.Equal(t, 0, g.firstUser(chat[:302]), "nothing is asked")
	require.Equal(t, 0, g.firstUser(text))
	require.Zero(t, (&stages{}).firstUser(chat))

	require.Equal(t, 300, g.parting(chat, 300))
	require.Equal(t, 300, g.parting(chat, 363))
	require.Equal(t, 364, g.parting(chat, 364), "the part began long before")
	require.Equal(t, 602, g.parting(chat, 620))
	require.Equal(t, len(chat)-1, (&stages{}).parting(chat, len(chat)), "all of it is stored")
	require.Equal(t, 620, (&stages{}).parting(chat, 620))
	require.Zero(t, g.parting(chat, 0))
}

// TestAChatComesBackForAnother that begins with the same system prompt: from there, if it is known where
// messages of users begin. Otherwise the second one shows where chats part. It does so whether or not the chat
// was expected to go on.
func TestAChatComesBackForAnother(t *testing.T) {
	for name, test := range map[string]struct {
		user    []int32
		expects bool
		want    [3]int
	}{
		"messages are known":               {[]int32{1011, 7}, false, [3]int{0, 300, 300}},
		"messages are not known":           {nil, false, [3]int{0, 0, 300}},
		"messages are known, expected":     {[]int32{1011, 7}, true, [3]int{0, 300, 300}},
		"messages are not known, expected": {nil, true, [3]int{0, 0, 300}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, hybrid: true, change: func(o *Options) { o.UserStart = test.user }}
			var last []int32
			for i, want := range test.want {
				w.start(1, 4000)
				if test.expects {
					w.tier.Expect(last)
					w.tier.storing.Wait()
				}
				tokens := slices.Concat(prompt(1, 300), []int32{1011, 7}, prompt(2+i, 300), opening)
				require.Equal(t, want, w.ask(ask(tokens), 30), "chat %d", i)
				w.killed()
				last = append(tokens, prompt(9, 100)...)
				require.Equal(t, 602, w.ask(ask(last), 1), "the chat itself goes on")
				w.tier.Flush(t.Context())
			}
		})
	}
}

// TestAPromptWithoutControlTokensComesBack the third time: the second one shows that others begin with it. That
// goes for a prompt that is asked again, too.
func TestAPromptWithoutControlTokensComesBack(t *testing.T) {
	for _, more := range []int{0, 100} {
		w := &world{t: t, hybrid: true}
		for i, want := range []int{0, 0, min(300, 300+more-1), min(300, 300+more-1)} {
			w.start(1, 4000)
			require.Equal(t, want, w.ask(ask(slices.Concat(prompt(1, 300), prompt(2+i, more))), 30), "%d tokens more, %d", more, i)
			w.tier.Flush(t.Context())
		}
	}
}

// TestStepsAreOne account, and the client hears them as one.
func TestStepsAreOne(t *testing.T) {
	w := newChats(t, 1, 4000)
	var heard []Progress
	r := ask(slices.Concat(prompt(1, 300), []int32{1011, 7}, prompt(2, 300), opening))
	r.Stage.Hear = func(p Progress) { heard = append(heard, p) }
	turn := w.begin(r)
	require.Equal(t, &Answer{Processed: 602, Generated: 1, Took: 602 * 20 * time.Millisecond}, turn.Staged)
	for i, p := range heard {
		require.Zero(t, p.Cached)
		require.True(t, i == 0 || p.Processed >= heard[i-1].Processed && p.Took >= heard[i-1].Took, "%+v", heard)
	}
	require.Equal(t, 602, heard[len(heard)-1].Processed)
	answer := w.engine.slots[0].complete(w.engine, t.Context(), r.Tokens, 5)
	require.Equal(t, 602, answer.Cached, "the request is computed from there")
	turn.End(answer)
}

// TestAnEndThatIsWorthIt is written quicker than its tokens are computed, or is far behind the one before.
func TestAnEndThatIsWorthIt(t *testing.T) {
	r := rates.New()
	computes(r, time.Millisecond)
	of := func(bytes int64) form {
		return form{shape: &llamastate.Shape{Caches: []llamastate.Cache{{Kind: llamastate.Recurrent, Tensors: [2][]llamastate.Tensor{{{Row: bytes}}}}}}}
	}
	for _, test := range []struct {
		bytes int64
		n     int
		want  bool
	}{
		{1, restoreMin, true}, {1, restoreMin - 1, false}, {1, -100, false},
		{endSpeed / 5, 210, true}, {endSpeed / 5, 190, false},
		{10 * endSpeed, endEvery, true}, {10 * endSpeed, endEvery - 1, false},
	} {
		require.Equal(t, test.want, of(test.bytes).worthEnd(r, 1000, 1000+test.n), "%+v", test)
	}
}

// thinking is a conversation with a model that has a state. Its thoughts are left out of later
// prompts.
type thinking struct {
	*world
	text []int32 // up to the end of the last turn
}

// turn adds some tokens of the user, asks, and returns the tokens that were restored.
func (c *thinking) turn(seed, n int) int {
	c.text = slices.Concat(c.text, prompt(seed, n))
	restored := c.ask(ask(slices.Concat(c.text, opening)), 30) // most of it thoughts
	c.text = slices.Concat(c.text, opening, prompt(seed+1, 5))
	return restored
}

// TestAThinkingConversationComesBack from the end of each turn of the user, although no answer
// is part of the next prompt as it was.
func TestAThinkingConversationComesBack(t *testing.T) {
	c := &thinking{world: &world{t: t, hybrid: true}}
	c.start(1, 4000)
	require.Zero(t, c.turn(1, 300))
	c.tier.Flush(t.Context())

	c.start(1, 4000)
	require.Equal(t, 300, c.turn(3, 300))
	require.Equal(t, 300+607, c.engine.cached, "each step of the second prompt goes on where the one before ended")
	c.idle()
	require.Equal(t, 0, c.turn(5, 10), "the engine can go back behind the restored tokens")

	// Another chat takes the slot, and this one comes back.
	c.ask(ask(prompt(9, 100)), 5)
	require.Equal(t, 607, c.turn(7, 10), "an end is not put where a page ends")
	c.text = c.text[:290]
	require.Zero(t, c.turn(11, 20), "nothing is stored that ends there")
	c.tier.Flush(t.Context())
}

// TestAStageThatIsNotWorthIt: prompts are computed at once where the next end would gain little.
func TestAStageThatIsNotWorthIt(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"dense":      func(w *world) { w.hybrid = false; w.start(1, 4000) },
		"no control": func(w *world) { w.restart(func(o *Options) { o.Control = nil }) },
		"quick":      func(w *world) { computes(w.rates, time.Microsecond) },
		"slow saves": func(w *world) { saves(w.rates, 1, time.Second) },
		"too slow":   func(w *world) { computes(w.rates, 3*time.Second) },
		"no memory":  func(w *world) { w.available, w.free = 1, 1 },
		"at once":    func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHybrid(t)
			change(w)
			r := ask(slices.Concat(prompt(1, 300), opening))
			r.AtOnce = name == "at once"
			turn := w.begin(r)
			require.Nil(t, turn.Staged)
			turn.End(nil)
		})
	}
}

// TestAStageHoldsUpOthers: a save counts for each request that waits for it.
func TestAStageHoldsUpOthers(t *testing.T) {
	w := (&world{t: t, hybrid: true}).start(2, 4000)
	begin := func(seed int) *Turn {
		w.rates = rates.New()
		saves(w.rates, hybridShape.RowBytes(300, 0), 400*time.Millisecond)
		w.tier.stages.rates = w.rates
		defer w.tier.storing.Wait()
		return w.begin(ask(slices.Concat(prompt(seed, 300), opening)))
	}
	one := begin(1)
	require.NotNil(t, one.Staged)
	other := begin(2)
	require.Nil(t, other.Staged)
	one.Drop()
	other.Drop()
}

// computes gives rates the time of a token.
func computes(r *rates.Rates, each time.Duration) {
	for i := range 8 {
		r.Computed(64, float64(i*64), 64*each)
	}
}

// saves gives rates the time in which the engine saves a number of bytes.
func saves(r *rates.Rates, bytes int64, took time.Duration) {
	r.Stepped(rates.Chain{Pages: []rates.Page{{Bytes: bytes}}, Then: saving}, took)
}

// TestSavesAreTimed, for the decision in which steps a prompt is computed.
func TestSavesAreTimed(t *testing.T) {
	w := newWorld(t, 1, 4000)
	require.Zero(t, w.rates.Stepping(saved(fakeShape.RowBytes(300, 0))))
	w.askAndIdle(ask(prompt(1, 300)), 5)
	require.Positive(t, w.rates.Stepping(saved(fakeShape.RowBytes(300, 0))))
}

// TestAStageBesideASave waits a while for the save of another slot, and then goes on without its own.
func TestAStageBesideASave(t *testing.T) {
	w := newHybrid(t)
	computes(w.rates, 5*time.Millisecond)
	tokens := slices.Concat(prompt(1, 300), opening)
	w.tier.saver.saving <- struct{}{}
	turn := w.begin(ask(tokens))
	require.NotNil(t, turn.Staged)
	require.True(t, turn.s.dirty)
	<-w.tier.saver.saving
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), tokens, 5))
	w.tier.Flush(t.Context())
}

// TestAStageThatEndsEarly, because a client waits for its header or the engine refuses it, leaves the
// request as it was.
func TestAStageThatEndsEarly(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"too long": func(w *world) { w.tier.patience.stage = 0 },
		"refused":  func(w *world) { w.engine.refuseNext("/completion", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHybrid(t)
			end(w)
			tokens := slices.Concat(prompt(1, 300), opening)
			turn := w.begin(ask(tokens))
			require.Nil(t, turn.Staged)
			turn.End(w.engine.slots[0].complete(w.engine, t.Context(), tokens, 5))
			w.tier.Flush(t.Context())
			require.NotEmpty(t, w.found(tokens))
		})
	}
}

// TestASaveThatDoesNotPay is left out where a request waits for it, and the slot's tokens are computed
// again one day. At the end all is saved.
func TestASaveThatDoesNotPay(t *testing.T) {
	for name, test := range map[string]struct {
		slots int
		cost  time.Duration // of a save; 200 tokens take 200 ms
		other int           // requests that run besides
		want  int
	}{
		"quick":                 {1, 150 * time.Millisecond, 0, 200},
		"slow":                  {1, 300 * time.Millisecond, 0, 0},
		"it holds up an answer": {2, 150 * time.Millisecond, 1, 0},
		"nothing is known":      {1, 0, 0, 200},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.slots, 1000)
			tokens := prompt(1, 200)
			w.ask(Request{Tokens: tokens, Slot: 0}, 2)
			computes(w.rates, time.Millisecond)
			if test.cost > 0 {
				saves(w.rates, fakeShape.RowBytes(201, 0), test.cost)
			}
			var others []*Turn
			for slot := 1; slot <= test.other; slot++ {
				others = append(others, w.begin(Request{Tokens: prompt(5, 100), Slot: slot}))
			}
			w.ask(Request{Tokens: prompt(2, 100), Slot: 0}, 2)
			w.tier.storing.Wait()
			require.Equal(t, test.want, endOf(w.found(tokens)))
			for _, turn := range others {
				turn.Drop()
			}
			w.tier.Flush(t.Context())
			require.Equal(t, 100, endOf(w.found(prompt(2, 100))))
		})
	}
}

// TestASaveThatStoresLittle: of a slot whose pages are stored only the others count.
func TestASaveThatStoresLittle(t *testing.T) {
	w := newWorld(t, 1, 1000)
	tokens := prompt(1, 200)
	w.askAndIdle(ask(tokens), 2)
	computes(w.rates, time.Millisecond)
	saves(w.rates, fakeShape.RowBytes(221, 0), 100*time.Millisecond)
	w.ask(ask(slices.Concat(tokens, prompt(3, 20))), 2)
	w.engine.requests()
	w.ask(ask(prompt(2, 100)), 2)
	require.Zero(t, w.engine.requests()["/slots/0"])
	w.tier.Flush(t.Context())
}

// TestIdleSlotsRest: saves hold up the answers in other slots for a hundredth of the time.
func TestIdleSlotsRest(t *testing.T) {
	w := newWorld(t, 2, 1000)
	for slot, tokens := range [][]int32{prompt(1, 100), prompt(2, 100)} {
		w.ask(Request{Tokens: tokens, Slot: slot}, 2)
	}
	busy := w.begin(Request{Tokens: prompt(3, 100), Slot: 1})
	w.tier.storing.Wait()
	soon := time.Now().Add(time.Hour)
	w.tier.saver.rested.Store(&soon)
	w.idle()
	w.idle()
	require.Empty(t, w.found(prompt(1, 100)))
	past := time.Now()
	w.tier.saver.rested.Store(&past)
	w.idle()
	require.NotEmpty(t, w.found(prompt(1, 100)))
	until := *w.tier.saver.rested.Load()
	require.True(t, until.After(past), "the save before counts")

	w.tier.saver.rested.Store(&soon)
	busy.End(w.engine.slots[1].complete(w.engine, t.Context(), prompt(3, 100), 2))
	w.idle()
	require.NotEmpty(t, w.found(prompt(3, 100)), "nobody is held up")
}
