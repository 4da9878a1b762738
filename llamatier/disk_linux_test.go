package llamatier

import (
	"context"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
)

// hangingStore is a store on a disk that hangs until hung is closed.
type hangingStore struct {
	Store
	hung  chan struct{}
	calls chan string
}

func (s *hangingStore) hang(call string) {
	s.calls <- call
	<-s.hung
}

func (s *hangingStore) Find(ctx context.Context, p diskstore.Prompt) diskstore.Found {
	s.hang("find")
	return s.Store.Find(ctx, p)
}

func (s *hangingStore) Put(ctx context.Context, p *pagefile.Page) error {
	s.hang("put")
	return s.Store.Put(ctx, p)
}

// hangStore has the Tier's store hang.
func (w *world) hangStore() *hangingStore {
	s := &hangingStore{Store: w.store, hung: make(chan struct{}), calls: make(chan string, 100)}
	w.disk().Store = s
	return s
}

// answers waits until no operation is left behind.
func (w *world) answers() {
	for w.disk().Hangs() {
		runtime.Gosched()
	}
}

// TestALocalDiskThatHangs: prompts are computed, and one operation is left behind.
func TestALocalDiskThatHangs(t *testing.T) {
	w := stored(t)
	s := w.hangStore()
	w.disk().Patience.Find = time.Millisecond
	for i := range 20 {
		require.Zero(t, w.ask(ask(prompt(1, 250)), 2))
		if i == 0 {
			require.Equal(t, telemetry.CauseTierDown, w.missed().Cause)
		}
		w.idle()
	}
	require.Len(t, s.calls, 1)
	require.Empty(t, w.tier.saver.saving, "no file of a save is kept")
	close(s.hung)
	w.answers()
	w.disk().Patience.Find = time.Hour
	w.ask(ask(prompt(2, 100)), 2)
	require.Equal(t, 250, w.ask(ask(prompt(1, 260)), 2))
}

// TestAPutThatHangs keeps no file of a save.
func TestAPutThatHangs(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 2)
	s := w.hangStore()
	w.disk().Patience.Find, w.disk().Patience.Page = time.Hour, time.Second // in which the slot's file is read
	w.idle()
	require.Equal(t, "put", <-s.calls)
	require.Empty(t, w.tier.saver.saving)
	close(s.hung)
	w.answers()
}

// hurrying is a store after whose answer its disk is impatient.
type hurrying struct {
	Store
	disk *disk
}

func (s *hurrying) Find(ctx context.Context, p diskstore.Prompt) diskstore.Found {
	defer func() { s.disk.Patience.Find = time.Millisecond }()
	return s.Store.Find(ctx, p)
}

// TestADiskThatHangsUnderAFile: the prompt is computed, and the file is removed when it is there
// at last.
func TestADiskThatHangsUnderAFile(t *testing.T) {
	w := stored(t)
	hung := make(chan struct{})
	w.available, w.look = 100, func() { <-hung }
	w.disk().Store = &hurrying{w.store, w.disk()}
	require.Zero(t, w.ask(ask(prompt(1, 250)), 2))
	w.disk().Patience.Find = time.Hour // to remove the file
	close(hung)
	w.answers()
	require.Empty(t, w.slotFiles())
}

// TestADiskThatHangsBeforeTheShapeIsKnown holds up nobody for longer than may be.
func TestADiskThatHangsBeforeTheShapeIsKnown(t *testing.T) {
	w := newWorld(t, 1, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan struct{})
	w.available, w.look = 100, func() {
		cancel()
		<-hung
	}
	w.engine.refuseNext("/slots/0", 2) // to save the slot, and to empty it
	_, err := Shape(ctx, w.engine.engine(), w.files)
	require.ErrorIs(t, err, context.Canceled)
	close(hung)
	for asked := 0; asked < 2; runtime.Gosched() {
		w.engine.mu.Lock()
		asked = 2 - w.engine.refuse["/slots/0"]
		w.engine.mu.Unlock()
	}
	for len(w.slotFiles()) > 0 {
		runtime.Gosched()
	}
}

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
