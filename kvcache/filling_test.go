package kvcache

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// stored stores texts, as an earlier process did.
func stored(t *testing.T, store Store, start startRunner, texts ...[]int32) {
	r := start(t, store, 1, 256, Options{})
	for _, text := range texts {
		r.run(r.slots[0], text, nil, true)
	}
	r.flush()
}

// storedBefore is a runner whose store has a text of 53 tokens.
func storedBefore(t *testing.T, slots, numCtx int, opts Options) (r *fakeRunner, store *memStore, text []int32) {
	store, text = newMemStore(t), tokenRange(1, 53)
	stored(t, store, newFakeRunner, text)
	return newFakeRunner(t, store, slots, numCtx, opts), store, text
}

// TestASlotIsFilledWhileTheModelLoads: the first request finds its text in the slot, reads no page,
// and knows that the text was restored.
func TestASlotIsFilledWhileTheModelLoads(t *testing.T) {
	withAndWithoutWindow(t, func(t *testing.T, start startRunner) {
		store := newMemStore(t)
		text := tokenRange(1, 53)
		stored(t, store, start, text)
		r := start(t, store, 1, 256, Options{Poison: true})
		r.fillAll(text)
		reads := store.reads
		restored := r.run(r.slots[0], slices.Concat(text, tokenRange(2, 9)), nil, true)
		require.Equal(t, reads, store.reads)
		require.Equal(t, Restored{Held: 53, Tokens: 53, Early: 53, Bytes: restored.Bytes, Tiers: []string{"local"}, Took: restored.Took}, restored)
		require.NotZero(t, restored.Bytes)
		require.EqualValues(t, 53, r.tiered.Stats().RestoredTokens)
		r.cache.requireRows(t, 0, slices.Concat(text, tokenRange(2, 9)))
		require.Zero(t, r.run(r.slots[0], slices.Concat(text, tokenRange(2, 9)), nil, true).Tokens, "the slot holds them since")
	})
}

// TestATextThatIsLongerThanTheContextIsLeftOut: its prompt would be cut.
func TestATextThatIsLongerThanTheContextIsLeftOut(t *testing.T) {
	r, store, text := storedBefore(t, 1, 52, Options{})
	reads := store.reads
	r.fillAll(text)
	require.Empty(t, r.slots[0].inputs)
	require.Equal(t, reads, store.reads)
}

// TestAForkOfAFilledSlot takes its rows' origin along.
func TestAForkOfAFilledSlot(t *testing.T) {
	r, _, text := storedBefore(t, 2, 64, Options{Poison: true})
	r.fillAll(text)
	require.Equal(t, 53, r.fork(r.slots[1], append(slices.Clone(text), 7)))
	prompt := append(slices.Clone(text), 7)
	require.Equal(t, 53, r.run(r.slots[1], prompt, nil, true).Early)
	require.Equal(t, 53, r.run(r.slots[0], prompt, nil, true).Early)
	r.cache.requireRows(t, 0, prompt)
	r.cache.requireRows(t, 1, prompt)
}

// TestARequestWaitsOnlyForItsOwnText: one that goes on with the text that is being restored waits for
// it; any other request ends the filling at once.
func TestARequestWaitsOnlyForItsOwnText(t *testing.T) {
	for name, own := range map[string]bool{"own": true, "other": false} {
		t.Run(name, func(t *testing.T) {
			store := newMemStore(t)
			text, prompt := tokenRange(1, 53), tokenRange(2, 20)
			stored(t, store, newFakeRunner, text)
			if own {
				prompt = slices.Concat(text, prompt)
			}
			reading, hold := make(chan int, 100), make(chan struct{})
			r := newFakeRunner(t, store, 1, 256, Options{Poison: true})
			store.onRead = func(page int) {
				reading <- page
				if page == 2 {
					<-hold
				}
			}
			r.fill(text)
			for page := range reading {
				if page == 2 {
					break
				}
			}
			waits := make(chan struct{})
			ctx := &watchedContext{Context: t.Context(), waited: waits}
			done := make(chan Restored)
			go func() {
				restored, err := r.loadContext(ctx, r.slots[0], inputsOf(prompt), true)
				if err != nil {
					panic(err)
				}
				done <- restored
			}()
			<-waits // for the text, or for the end of the filling, which does not read on
			close(hold)
			restored := <-done
			r.complete(r.slots[0])
			r.cache.requireRows(t, 0, prompt)
			if own {
				require.Equal(t, 53, restored.Early)
			} else {
				require.Zero(t, restored.Held)
				require.Less(t, len(r.slots[0].inputs), 53)
			}
		})
	}
}

// watchedContext tells when somebody begins to wait for its end.
type watchedContext struct {
	context.Context
	waited chan struct{}
	once   sync.Once
}

func (c *watchedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waited) })
	return c.Context.Done()
}

// TestARequestThatIsGivenUpDuringFilling leaves the filling to the next request.
func TestARequestThatIsGivenUpDuringFilling(t *testing.T) {
	r, store, text := storedBefore(t, 1, 256, Options{Poison: true})
	reading, hold := make(chan struct{}, 100), make(chan struct{})
	store.onRead = func(int) { reading <- struct{}{}; <-hold }
	r.fill(text)
	<-reading
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.loadContext(ctx, r.slots[0], inputsOf(text), true)
	require.ErrorIs(t, err, context.Canceled)
	close(hold)
	require.Equal(t, 52, r.run(r.slots[0], text, nil, true).Early)
	r.cache.requireRows(t, 0, text)
}

// TestADiskThatHangsWhileSlotsAreFilled delays the first request for a bounded time.
func TestADiskThatHangsWhileSlotsAreFilled(t *testing.T) {
	silence(t)
	store := &slowBuffers{memStore: newMemStore(t), page: 2, answer: make(chan struct{}), ended: make(chan struct{})}
	text := tokenRange(1, 50)
	r := newFakeRunner(t, store, 1, 256, Options{})
	r.save(r.slots[0], text)
	r = newFakeRunner(t, store, 1, 256, Options{Poison: true})
	r.tiered.store.Patience.Page = 10 * time.Millisecond
	r.fill(text)
	require.LessOrEqual(t, r.load(r.slots[0], text, true).Held, 16)
	r.complete(r.slots[0])
	close(store.answer)
	<-store.ended
	require.Eventually(t, func() bool { return !r.tiered.store.Hangs() }, time.Minute, time.Microsecond)
	r.cache.requireRows(t, 0, text)
}

// TestADamagedPageWhileSlotsAreFilled: the pages before it are in the slot, and the request stores it
// again.
func TestADamagedPageWhileSlotsAreFilled(t *testing.T) {
	silence(t)
	r, store, text := storedBefore(t, 1, 256, Options{Poison: true})
	store.setsAside, store.readErr, store.wrote = true, map[int]error{3: pagefile.ErrDamaged}, nil
	r.fillAll(text)
	store.readErr = nil
	require.Len(t, r.slots[0].inputs, 24)
	require.Equal(t, 24, r.run(r.slots[0], text, nil, true).Early)
	r.flush()
	require.Contains(t, store.wrote, 3)
	r.cache.requireRows(t, 0, text)
}

// TestClosingWhileSlotsAreFilled ends the filling first.
func TestClosingWhileSlotsAreFilled(t *testing.T) {
	r, store, text := storedBefore(t, 1, 256, Options{Poison: true})
	reading := make(chan struct{}, 100)
	store.onRead = func(int) {
		reading <- struct{}{}
		<-r.tiered.running.Done()
	}
	r.fill(text)
	<-reading
	r.tiered.Close()
	select {
	case <-r.tiered.filling.done:
	default:
		t.Fatal("the slots are still being filled")
	}
}

// TestNoTextWhileTheStoreCounts: a request does not wait for it.
func TestNoTextWhileTheStoreCounts(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 256, Options{Latest: make(chan []int32)})
	r.mu.Lock()
	r.tiered.FillSlot(&r.mu, 256, nil)
	r.mu.Unlock()
	r.run(r.slots[0], tokenRange(1, 20), nil, true)
	r.cache.requireRows(t, 0, tokenRange(1, 20))
}

// TestAFilledSlotIsNotUsed: loading a model that nobody asks changes neither which conversation is the
// latest nor which pages are evicted first.
func TestAFilledSlotIsNotUsed(t *testing.T) {
	for name, ram := range map[string]int64{"disk": 0, "memory": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			text := tokenRange(1, 21)
			open := func() *diskstore.Store {
				return newDiskStore(t, root, func(o *diskstore.Options) { o.ReadAheadBytes, o.RAM.BudgetBytes = 1<<30, ram })
			}
			r := newFakeRunner(t, open(), 1, 256, Options{})
			r.save(r.slots[0], text)
			r.tiered.Close()
			times := func(edit func(path string, used time.Time)) (all []time.Time) {
				require.NoError(t, filepath.WalkDir(root, func(path string, file fs.DirEntry, err error) error {
					if err == nil && filepath.Ext(path) == ".kvp" {
						info, err := file.Info()
						require.NoError(t, err)
						all = append(all, info.ModTime())
						edit(path, info.ModTime())
					}
					return err
				}))
				return all
			}
			times(func(path string, used time.Time) {
				require.NoError(t, os.Chtimes(path, time.Time{}, used.Add(-time.Hour)))
			})
			before := times(func(string, time.Time) {})
			store := open()
			latest, err := store.Recent().Text(t.Context())
			require.NoError(t, err)
			require.Equal(t, text, latest)
			r = newFakeRunner(t, store, 1, 256, Options{})
			r.fillAll(latest)
			require.Len(t, r.slots[0].inputs, 21)
			r.tiered.Close()
			require.Equal(t, before, times(func(string, time.Time) {}))
		})
	}
}

// TestASlotThatGotNothingIsNotLogged: computing its text is quicker.
func TestASlotThatGotNothingIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	r, _, text := storedBefore(t, 1, 256, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	r.tiered.gate.Always = false
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	r.fillAll(text)
	require.Empty(t, log.String())
}

// TestALoadTellsNothingOfTheDisk: a disk that is late while weights load is read from when they are
// loaded.
func TestALoadTellsNothingOfTheDisk(t *testing.T) {
	store := newStuckStore(t)
	text := tokenRange(1, 53)
	stored(t, store, newFakeRunner, text)
	r := newFakeRunner(t, store, 1, 256, Options{})
	r.tiered.gate.Always = false
	learn(r.tiered.rates, time.Second, time.Microsecond) // no page of a busy machine takes as long as computing it
	at := make(chan time.Time, 1)
	at <- time.Now()
	r.tiered.gate.After = func(time.Duration) <-chan time.Time { return at }
	store.stick(0)
	r.fillAll(text)
	require.Empty(t, r.slots[0].inputs)
	r.tiered.reads.Wait()
	store.stick()
	r.tiered.gate.After = time.After
	require.Equal(t, 52, r.run(r.slots[0], text, nil, true).Tokens)
}
