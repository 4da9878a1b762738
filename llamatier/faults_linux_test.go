package llamatier

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

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
					f := newFaulty(t, set)
					f.fail(rule, nth)
					f.live()
					f.recover()
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
	f.restored += turn.Restored
	return held
}

// recover requires that nothing is left of a fault when the disk is sound again.
func (f *faulty) recover() {
	f.gate.Open()
	f.answers()
	f.disk.Reset()
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
