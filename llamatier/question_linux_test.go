package llamatier

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// deaf is an engine that does not answer requests to a path.
type deaf struct {
	http.RoundTripper
	path  string
	asked atomic.Int32
}

func (d *deaf) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != d.path {
		return d.RoundTripper.RoundTrip(r)
	}
	d.asked.Add(1)
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestAQuestionThatIsNotAnswered turns the Tier off, holds up one request, and is not asked again.
func TestAQuestionThatIsNotAnswered(t *testing.T) {
	for _, path := range []string{"/slots", "/metrics"} {
		w := newWorld(t, 1, 1000)
		d := &deaf{path: path}
		w.restart(func(o *Options) {
			d.RoundTripper = w.engine
			o.Engine = &Engine{Client: &http.Client{Transport: d}}
		})
		w.tier.patience.answer = time.Millisecond
		w.begin(ask(prompt(1, 100))).End(nil)
		for range 3 {
			turn := w.begin(ask(prompt(1, 110)))
			turn.End(nil)
			w.idle()
		}
		require.True(t, w.tier.obstacles.off.Load())
		require.LessOrEqual(t, d.asked.Load(), int32(1))
	}
}

// TestSlotsThatMakeNoSense: the engine is asked no more for the request, which it answers.
func TestSlotsThatMakeNoSense(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 100)), 5)
	w.tier.table.slots[0].used = time.Time{} // it is looked at
	w.engine.lie = `[{"n_ctx":1000,"n_prompt_tokens":-1}]`
	turn := w.begin(ask(prompt(1, 110)))
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 110), 5))
	w.tier.storing.Wait()
}
