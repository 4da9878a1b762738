package llamatier

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// TestAPromptWhileReadingTheExpectedHangs does not wait for the disk.
func TestAPromptWhileReadingTheExpectedHangs(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.killed()
	s := &waiting{Store: w.store, began: make(chan struct{}, 1), pass: make(chan struct{})}
	w.restart(func(o *Options) {
		o.Store, o.Rates = s, rates.New()
		o.Rates.Computed(100, 50, 1000*time.Second) // a slow engine, which waits for pages
	})
	w.tier.Expect(prompt(1, 200))
	<-s.began
	done := beside(func() { w.ask(private(prompt(9, 50)), 5) })
	select {
	case <-done:
	case <-time.After(4 * time.Second): // less than engine.UsualPatience.Grace
		t.Error("it waits for the disk")
	}
	close(s.pass)
	<-done
	w.tier.storing.Wait()
	require.Empty(t, w.slotFiles())
}

// TestAnUnknownRequestWhileTheExpectedIsRead: nothing is restored beside it, which llama-server would hold back,
// and then the requests behind it.
func TestAnUnknownRequestWhileTheExpectedIsRead(t *testing.T) {
	w, s := expecting(t, true)
	w.hurry()
	<-s.began
	busy, runs, over := &w.engine.slots[0].use, make(chan struct{}), make(chan struct{})
	unknown := beside(func() {
		end := w.tier.Unknown()
		busy.Lock()
		close(runs)
		<-over
		busy.Unlock()
		end(true)
	})
	select {
	case <-runs:
	case <-time.After(100 * time.Millisecond): // it waits
	}
	close(s.pass)
	<-runs
	turn := w.begin(ask(prompt(1, 250)))
	w.tier.table.mu.Lock()
	acting := turn.s.acting
	w.tier.table.mu.Unlock()
	require.False(t, acting, "an action is held back before the request")
	turn.Drop()
	close(over)
	<-unknown
	w.tier.storing.Wait()
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
		t.Log(expects, w.latest(), w.engine.computed)
		require.Less(t, w.engine.computed, 20, "%v", expects)
	}
}

// TestADiskThatIsBusyAtFirst: a prompt some time later is restored.
func TestADiskThatIsBusyAtFirst(t *testing.T) {
	for _, expects := range []bool{false, true} {
		w := newWorld(t, 1, 1000)
		w.ask(ask(prompt(1, 200)), 5)
		w.killed()
		s := &waiting{Store: w.store, pass: make(chan struct{})}
		if expects {
			s.began = make(chan struct{}, 1)
		}
		w.restart(func(o *Options) {
			o.Store, o.Rates = s, rates.New()
			o.Rates.Computed(1000, 500, 100*time.Millisecond)
		})
		if expects {
			w.tier.Expect(prompt(1, 200))
			<-s.began
			time.Sleep(100 * time.Millisecond)
			close(s.pass)
			w.tier.storing.Wait()
		}
		require.Zero(t, w.engine.restored)
		w.ask(ask(prompt(1, 300)), 5)
		require.Equal(t, 200, w.engine.restored, "%v", expects)
	}
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
