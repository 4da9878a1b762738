package kvcache

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRandomInterleavings(t *testing.T) { randomInterleavings(t, false, newFakeRunner) }

// A window drops rows, and is restored as far as the position needs it.
func TestRandomInterleavingsWithAWindow(t *testing.T) {
	randomInterleavings(t, false, newWindowedRunner)
}

// No rows are restored of a page that ends before every window.
func TestRandomInterleavingsWithAWindowOnly(t *testing.T) {
	randomInterleavings(t, false, newWindowOnlyRunner)
}

// Rows reused at another position never count as exact.
func TestRandomInterleavingsWithRuns(t *testing.T) {
	randomInterleavings(t, true, newFakeRunner)
}

func TestRandomInterleavingsWithRunsAndAWindow(t *testing.T) {
	randomInterleavings(t, true, newWindowedRunner)
}

// tried counts steps of random interleavings, states restored, pages given up, and tokens restored
// from the first lossy page on.
type tried struct{ steps, states, givenUp, lossy int }

// stepsLong is the number of steps of each random interleaving with KVTIER_LONG=1.
const stepsLong = 260_000

func randomInterleavings(t *testing.T, reuse bool, start startRunner) {
	playInterleavings(t, stepsLong, func(t *testing.T, sum *tried) {
		interleave(t, func(rt *rapid.T) drawnOptions { return draw(rt, reuse) }, start, sum)
	})
}

// playInterleavings plays once, and with KVTIER_LONG=1 until a number of steps was taken.
func playInterleavings(t *testing.T, long int, play func(t *testing.T, sum *tried)) {
	var sum tried
	defer func() {
		t.Logf("states restored: %d", sum.states)
		t.Logf("pages given up: %d", sum.givenUp)
		t.Logf("lossy tokens restored: %d", sum.lossy)
		t.Logf("steps taken: %d", sum.steps)
	}()
	if os.Getenv("KVTIER_LONG") == "" {
		play(t, &sum)
		return
	}
	for sum.steps < long && !t.Failed() {
		t.Run("", func(t *testing.T) { play(t, &sum) }) // a subtest: its cleanup frees memory at its end
	}
}

// draw draws the options of a simulation. Text that moves is for models without state.
func draw(t *rapid.T, reuse bool) drawnOptions {
	d := drawnOptions{
		runs:       reuse,
		recurrent:  !reuse && rapid.Bool().Draw(t, "recurrent"),
		keeps:      rapid.Bool().Draw(t, "checkpoints"),
		stateEvery: rapid.SampledFrom([]int{8, 24, 2048}).Draw(t, "state every"),
		hurried:    rapid.Bool().Draw(t, "hurried"),
		delays:     rapid.Bool().Draw(t, "delays"),
		explained:  rapid.Bool().Draw(t, "explained"),
		lossy:      rapid.Bool().Draw(t, "lossy"),
		host:       rapid.IntRange(0, 3).Draw(t, "host") == 0,
		elastic:    rapid.IntRange(0, 3).Draw(t, "elastic") == 0,
		embeds:     rapid.IntRange(0, 3).Draw(t, "embeds") == 0,
		slots:      1,
	}
	if !d.recurrent {
		d.slots = rapid.IntRange(1, 3).Draw(t, "slots")
	}
	return d
}

// stuckAfter bounds one history of random steps.
const stuckAfter = 5 * time.Minute

func interleave(t *testing.T, draw func(*rapid.T) drawnOptions, start startRunner, sum *tried) {
	silence(t)
	require.NoError(t, flag.Set("rapid.steps", "100")) // 30 steps, the default, end before much is stored
	rapid.Check(t, func(rt *rapid.T) {
		store := newMemStore(t)
		store.setsAside = true
		s := &simulation{store: store, hangs: &hangingStore{memStore: store, page: -1}, start: start, drawn: draw(rt)}
		defer watch(t, stuckAfter, func() string { return fmt.Sprintf("%+v", s.drawn) })()
		s.most = rapid.SampledFrom([]int64{queuedBytes, 44 << 10}).Draw(rt, "bytes queued")
		if s.drawn.disk {
			s.disk = newDiskBelow(t)
			defer s.disk.Close()
		}
		s.begin(t, s.drawn.slots)
		defer func() {
			s.loaded()
			s.end()
			sum.steps += s.steps
			sum.states += s.restored
			sum.givenUp += s.hangs.given
			sum.lossy += s.near
		}()
		rt.Repeat(s.actions())
		s.loaded()
		for s.build() || s.compute() {
		}
		s.Check(rt)
		require.Zero(rt, s.tiered.Stats().FailedCopies)
		store.mu.Lock()
		store.fail, store.failing = nil, nil
		store.mu.Unlock()
		s.flush()
		s.Check(rt)
		if !s.lost {
			s.requireStored(rt, slices.Collect(maps.Keys(s.tiered.slots.of))...)
		}
	})
}

// actions are the steps of a simulation.
func (s *simulation) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"load": s.Load, "build": s.Build, "compute": s.Compute, "compute more": s.Compute,
		"launch": s.Launch, "device": s.Device, "hold": s.Hold,
		"generate": s.Generate, "finish": s.Finish, "shift": s.Shift, "restart": s.Restart,
		"converse": s.Converse, "converse more": s.Converse,
		"advance": s.Advance, "advance more": s.Advance, "abort": s.Abort,
		"break": s.Break, "wait": s.Wait, "lose": s.Lose, "heal": s.Heal, "cool": s.Cool, "cool more": s.Cool,
		"": s.Check,
	}
	if s.drawn.hurried {
		actions["hang"] = s.Hang
	}
	if s.drawn.recurrent { // requests share one slot
		actions["finish more"], actions["finish most"], actions["converse most"] = s.Finish, s.Finish, s.Converse
	}
	if s.drawn.elastic {
		actions["empty"] = s.Empty
	}
	if s.drawn.embeds {
		actions["embed"] = s.Embed
	}
	return actions
}

// silence keeps log lines about a store that fails on purpose out of the output.
func silence(t *testing.T) {
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
}
