package llamatier

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
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

// diskFaults are the ways in which one operation of a disk goes wrong. One without an error hangs.
var diskFaults = map[string]vfs.Rule{
	"full":    {Err: syscall.ENOSPC, Short: 100},
	"bad":     {Err: syscall.EIO, Short: 50},
	"hanging": {},
}

// faultEvery is the distance between the operations that fail in the normal test run.
const faultEvery = 31

// TestADiskThatFailsAtAnyOperation has each operation of a disk fail in turn while conversations are
// stored and restored. The engine answers every prompt, gets no wrong row, and conversations are
// stored and restored again afterwards. In the long run each operation fails in each way; in the
// normal run, some operations fail in one way.
func TestADiskThatFailsAtAnyOperation(t *testing.T) {
	for kind, set := range map[string]func(w *world){
		"files":   func(*world) {},
		"streams": func(w *world) { w.hybrid, w.stream = true, true },
	} {
		sound := newFaulty(t, set)
		sound.live()
		operations := sound.disk.Count()
		require.Greater(t, sound.restored, 3*70, kind)
		sound.recover()
		first, step := 1, 1
		for name, rule := range diskFaults {
			if os.Getenv("KVTIER_LONG") == "" {
				first, step = first+faultEvery, faultEvery*len(diskFaults)
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				for nth := first; nth <= operations; nth += step {
					t.Run(fmt.Sprint("operation ", nth), func(t *testing.T) {
						f := newFaulty(t, set)
						f.fail(rule, nth)
						f.live()
						f.recover()
					})
				}
			})
		}
	}
}

// faulty is a world whose store is on a disk that fails.
type faulty struct {
	*world
	disk     *vfs.Injector
	gate     *vfs.Gate // at which an operation hangs
	restored int
}

func newFaulty(t *testing.T, set func(w *world)) *faulty {
	const root = string(filepath.Separator) + "local"
	mem := vfs.NewMem(1 << 30)
	require.NoError(t, mem.Mkdir(root))
	f := &faulty{disk: vfs.Inject(mem), gate: vfs.NewGate()}
	store, err := diskstore.Open(context.Background(), diskstore.Options{
		FS: f.disk, Fingerprint: pagefile.Key{1}, PageTokens: testPage,
		Local: diskstore.TierConfig{Root: root, BudgetBytes: 1 << 20},
	})
	require.NoError(t, err)
	f.world = &world{t: t, store: store}
	set(f.world)
	f.begin()
	f.disk.Reset()
	return f
}

// begin begins with an engine that holds nothing.
func (f *faulty) begin() {
	f.start(2, 1000)
	if f.stream && f.available != 100 { // operations that are left behind read it
		f.available = 100
	}
}

// fail has the n-th operation from now on fail.
func (f *faulty) fail(rule vfs.Rule, nth int) {
	rule.Nth = nth
	if rule.Err == nil {
		rule.Gate = f.gate
		f.world.disk().Patience.Find, f.world.disk().Patience.Page, f.tier.patience.part = time.Millisecond, time.Millisecond, time.Millisecond
	}
	f.disk.Add(rule)
}

// live stores and restores conversations.
func (f *faulty) live() {
	impatient, disk := f.tier.patience, f.world.disk().Patience
	one := f.say(slices.Concat(prompt(1, 90), opening))
	f.idle()
	two := f.say(prompt(2, 80))
	three := f.say(prompt(3, 70))
	f.idle()
	f.say(slices.Concat(one, prompt(4, 10)))
	f.tier.Flush(context.Background())
	require.Empty(f.t, f.tier.saver.saving)
	f.begin()
	f.tier.patience, f.world.disk().Patience = impatient, disk
	f.say(slices.Concat(two, prompt(5, 10)))
	f.say(slices.Concat(one[:75], prompt(6, 10)))
	f.say(slices.Concat(three, prompt(7, 10)))
	f.tier.Flush(context.Background())
}

// say asks, and returns the tokens of the prompt and its answer.
func (f *faulty) say(tokens []int32) []int32 {
	turn := f.world.begin(ask(tokens))
	s := f.engine.slots[turn.Slot()]
	answer := s.complete(f.engine, context.Background(), tokens, 5)
	held := slices.Clone(s.tokens)
	turn.End(answer)
	f.restored += turn.restored.tokens
	return held
}

// recover requires that nothing is left of a fault when the disk is sound again.
func (f *faulty) recover() {
	f.gate.Open()
	f.answers()
	f.disk.Reset()
	f.change = func(o *Options) { o.After = func(time.Duration) <-chan time.Time { return nil } } // pages are never late
	f.begin()
	f.world.disk().Patience.Find, f.world.disk().Patience.Page = time.Hour, time.Hour
	held := f.say(prompt(8, 80))
	f.tier.Flush(context.Background())
	require.Empty(f.t, f.tier.saver.saving)
	f.begin()
	f.world.disk().Patience.Find, f.world.disk().Patience.Page = time.Hour, time.Hour
	f.restored = 0
	f.say(append(held, 1, 2))
	require.Equal(f.t, len(held), f.restored)
	f.tier.Flush(context.Background())
	require.NoError(f.t, f.store.Close())
	for len(f.slotFiles()) > 0 { // files whose removal was not waited for
		runtime.Gosched()
	}
}
