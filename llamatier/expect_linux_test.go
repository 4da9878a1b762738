package llamatier

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// waiting is a store whose reads wait, if that is wanted.
type waiting struct {
	*diskstore.Store
	reads atomic.Int32
	began chan struct{} // receives the first read; nil if none waits
	pass  chan struct{} // closed when reads may go on
}

func (s *waiting) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	if s.reads.Add(1) == 1 && s.began != nil {
		s.began <- struct{}{}
		<-s.pass // as a disk does that knows no context
	}
	return s.Store.Read(ctx, ref, tokens, layout, into)
}

// expecting begins with a store that has two conversations of 200 tokens, the first of which is expected.
func expecting(t *testing.T, waits bool) (*world, *waiting) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(2, 200)), 5)
	w.idle()
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	s := &waiting{Store: w.store, pass: make(chan struct{})}
	if waits {
		s.began = make(chan struct{}, 1)
	}
	w.restart(func(o *Options) { o.Store = s })
	w.tier.Expect(prompt(1, 200))
	return w, s
}

// TestAnExpectedConversation is in the slot before its prompt comes, for which it counts as restored.
func TestAnExpectedConversation(t *testing.T) {
	w, s := expecting(t, false)
	w.tier.storing.Wait()
	require.Equal(t, 200, w.engine.restored)
	read := s.reads.Load()
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, telemetry.Prompt{Tokens: 300, Local: 200, Computed: 100}, w.latest())
	require.Equal(t, read, s.reads.Load())
	require.Zero(t, w.ask(ask(prompt(1, 320)), 5), "it is in the slot as any other")
	require.Equal(t, telemetry.Prompt{Tokens: 320, Slot: 300, Computed: 20}, w.latest())
	w.killed()
	require.Equal(t, 320, w.ask(ask(prompt(1, 330)), 5))
}

// TestPartOfAnExpectedConversation counts as restored, and no more.
func TestPartOfAnExpectedConversation(t *testing.T) {
	w, _ := expecting(t, false)
	w.tier.storing.Wait()
	w.ask(ask(append(prompt(1, 100), prompt(5, 60)...)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 160, Local: 100, Computed: 60}, w.latest())
}

// TestAnotherConversationThanTheExpected is restored in its place.
func TestAnotherConversationThanTheExpected(t *testing.T) {
	w, _ := expecting(t, false)
	w.tier.storing.Wait()
	require.Equal(t, 200, w.ask(ask(prompt(2, 300)), 5))
	require.Equal(t, telemetry.Prompt{Tokens: 300, Local: 200, Computed: 100}, w.latest())
	require.Equal(t, 200, w.ask(ask(prompt(1, 210)), 5))
	require.Equal(t, telemetry.Prompt{Tokens: 210, Local: 200, Computed: 10}, w.latest())
}

// TestAPromptWhileTheExpectedIsRead waits for it, and an end of the tier does, too.
func TestAPromptWhileTheExpectedIsRead(t *testing.T) {
	for _, ends := range []bool{false, true} {
		w, s := expecting(t, true)
		<-s.began
		do := func() { w.ask(ask(prompt(1, 300)), 5) }
		if ends {
			do = func() { w.tier.Flush(t.Context()) }
		}
		done := beside(do)
		select {
		case <-done:
			require.Fail(t, "the slot was used while it is restored")
		default:
		}
		close(s.pass)
		<-done
		w.tier.storing.Wait()
		require.LessOrEqual(t, w.engine.restored, 200)
		require.Empty(t, w.slotFiles())
		if !ends {
			require.Equal(t, 300, w.latest().Tokens)
		}
	}
}

// TestNothingIsExpected where a prompt may get another slot, or one of which nothing is known runs, or came first.
func TestNothingIsExpected(t *testing.T) {
	for name, begin := range map[string]func(w *world){
		"several slots": func(w *world) { w.start(2, 1000) },
		"runs":          func(w *world) { w.tier.Unknown() },
		"ran":           func(w *world) { w.tier.Unknown()(true) },
		"came first":    func(w *world) { w.ask(ask(prompt(3, 50)), 5) },
		"off":           func(w *world) { w.tier.Off(telemetry.ObstacleOption, "") },
		"a tenant's": func(w *world) {
			end, err := w.tier.Pass(t.Context(), Tenant{1})
			require.NoError(t, err)
			end(false, true) // its next request finds the slot as its own
		},
	} {
		w := newWorld(t, 1, 1000)
		w.ask(ask(prompt(1, 200)), 5)
		w.killed()
		begin(w)
		w.tier.Expect(prompt(1, 200))
		w.tier.storing.Wait()
		require.Zero(t, w.engine.restored, name)
	}
}

// TestAPromptWhileReadingTheExpectedHangs does not wait for the disk.
func TestAPromptWhileReadingTheExpectedHangs(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	s := &waiting{Store: w.store, began: make(chan struct{}, 1), pass: make(chan struct{})}
	w.restart(func(o *Options) { o.Store = s })
	w.rates.Computed(100, 50, 1000*time.Second) // a slow engine, which waits for pages
	w.disk().Patience.Page = time.Hour
	w.tier.Expect(prompt(1, 200))
	<-s.began
	w.ask(private(prompt(9, 50)), 5)
	close(s.pass)
	w.tier.storing.Wait()
	require.Zero(t, w.engine.restored)
	require.Empty(t, w.slotFiles())
}

// TestAnUnknownRequestWhileTheExpectedIsRead waits: llama-server would hold the restore back for it, and then the
// requests behind it.
func TestAnUnknownRequestWhileTheExpectedIsRead(t *testing.T) {
	w, s := expecting(t, true)
	<-s.began
	require.Len(t, w.tier.table.acting, 1) // which nobody changes before the pass
	unknown := beside(func() { w.tier.Unknown()(true) })
	close(s.pass)
	<-unknown
	w.tier.storing.Wait()
	w.ask(ask(prompt(1, 250)), 5)
	require.Equal(t, 250, w.latest().Tokens)
}

// TestAConversationWithoutRoom is not expected.
func TestAConversationWithoutRoom(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	w.start(1, 150)
	w.tier.Expect(prompt(1, 200))
	w.tier.storing.Wait()
	require.Zero(t, w.engine.requests()["/slots/0"])
}

// TestASlowStep: what an earlier process has seen of llama-server counts.
func TestASlowStep(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	path := filepath.Join(t.TempDir(), "rates.json")
	seen, err := rates.Open(path, "model", nil)
	require.NoError(t, err)
	seen.Stepped(rates.Chain{Pages: []rates.Page{{Tokens: testPage, Bytes: 2048, Rows: 2048, Tier: "local"}}, Then: loading}, time.Second)
	require.NoError(t, seen.Close())
	again, err := rates.Open(path, "model", nil)
	require.NoError(t, err)
	w.restart(func(o *Options) { o.Rates = again })
	w.tier.Expect(prompt(1, 200))
	w.tier.storing.Wait()
	require.Zero(t, w.engine.restored)
}

// TestAnExpectedConversationThatIsLost: no later prompt counts it.
func TestAnExpectedConversationThatIsLost(t *testing.T) {
	w, _ := expecting(t, false)
	w.tier.storing.Wait()
	end := w.tier.Unknown()
	s := w.engine.slots[0]
	s.use.Lock() // the unknown request runs
	turn := w.begin(ask(prompt(1, 300)))
	s.use.Unlock()
	s.complete(w.engine, t.Context(), prompt(7, 250), 5)
	end(true)
	turn.End(s.complete(w.engine, t.Context(), prompt(1, 300), 5))
	require.Equal(t, telemetry.Prompt{Tokens: 300, Computed: 300}, w.latest())
	w.ask(ask(prompt(1, 310)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 310, Slot: 300, Computed: 10}, w.latest())
}

// TestTheSamePromptAsTheExpected: a model with a state goes on before its end.
func TestTheSamePromptAsTheExpected(t *testing.T) {
	for _, expects := range []bool{false, true} {
		w := newHybrid(t)
		chat := slices.Concat(prompt(1, 200), opening)
		w.ask(ask(chat), 1)
		w.killed()
		if expects {
			w.tier.Expect(chat)
			w.tier.storing.Wait()
		}
		w.ask(ask(chat), 1)
		require.Less(t, w.engine.computed, 20, "%v", expects)
	}
}

// TestADiskThatIsBusyAtFirst is not taken for a slow one.
func TestADiskThatIsBusyAtFirst(t *testing.T) {
	w := stored(t)
	g := newGate(w.store, 0)
	w.restart(func(o *Options) { o.Store, o.After = g, g.after })
	w.rates.Computed(1000, 500, 100*time.Millisecond)
	w.tier.Expect(prompt(1, 200))
	w.tier.storing.Wait()
	require.Zero(t, w.engine.restored)
	require.Zero(t, w.rates.Reading(rates.Page{Tokens: testPage, Bytes: 1000, Tier: tier.Local}))
}

// TestAnotherBranchThanTheExpected comes from the store, too.
func TestAnotherBranchThanTheExpected(t *testing.T) {
	w := newWorld(t, 1, 1000)
	branch := slices.Concat(prompt(1, 96), prompt(2, 200))
	w.ask(ask(branch), 5)
	w.idle()
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	w.tier.Expect(prompt(1, 200))
	w.tier.storing.Wait()
	w.ask(ask(slices.Concat(branch, prompt(3, 50))), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 346, Local: 296, Computed: 50}, w.latest())
}

// TestAPrivatePromptAfterTheExpected is computed, as the manual says.
func TestAPrivatePromptAfterTheExpected(t *testing.T) {
	w, _ := expecting(t, false)
	w.tier.storing.Wait()
	w.ask(private(prompt(1, 300)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 300, Computed: 300, Private: true}, w.latest())
}

// TestNothingIsExpectedAfterTheEnd of a tier.
func TestNothingIsExpectedAfterTheEnd(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	w.tier.Flush(t.Context())
	w.tier.Expect(prompt(1, 200))
	w.tier.storing.Wait()
	require.Zero(t, w.engine.restored)
}

// TestTheExpectedIsForNoTenant: a request of one finds nothing of it, whoever chooses the slot.
func TestTheExpectedIsForNoTenant(t *testing.T) {
	for name, send := range map[string]func(w *world){
		"in a slot":   func(w *world) { w.ask(of(1, prompt(1, 300)), 5) },
		"private":     func(w *world) { r := of(1, prompt(1, 300)); r.Private = true; w.ask(r, 5) },
		"in any slot": func(w *world) { w.passOf(of(1, prompt(1, 300)), 5) },
	} {
		for _, reads := range []bool{false, true} {
			w, s := expecting(t, reads)
			if reads {
				<-s.began
			} else {
				w.tier.storing.Wait()
				require.Equal(t, 200, w.engine.restored)
			}
			done := beside(func() { send(w) })
			close(s.pass)
			<-done
			require.Zero(t, w.engine.cached, "%s, while it is read: %v", name, reads)
		}
	}
}

// TestNoTenantsConversationIsExpected, although it is the latest.
func TestNoTenantsConversationIsExpected(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(2, 200)), 5)
	w.idle()
	w.ask(of(1, prompt(1, 200)), 5)
	w.killed()
	store, err := diskstore.Open(t.Context(), diskstore.Options{
		Fingerprint: pagefile.Key{1}, PageTokens: testPage, Local: diskstore.TierConfig{Root: w.root, BudgetBytes: 1 << 30}, ReadAheadBytes: 1 << 20,
	})
	require.NoError(t, err)
	defer store.Close()
	text, err := store.Recent().Text(t.Context())
	require.NoError(t, err)
	require.Equal(t, 200, commonPrefix(prompt(2, 200), text))
}
