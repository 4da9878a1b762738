package kvcache

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// hold keeps pages from being copied beside batches until somebody waits for them, or ends that.
func (q *writeQueue) hold(held bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.copier.held = held
	q.changed.Broadcast()
}

// holds reports whether pages are kept from being copied.
func (q *writeQueue) holds() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.copier.held
}

// copying counts the pages whose rows are still in the device.
func (q *writeQueue) copying() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, job := range q.jobs {
		if job.copy != nil {
			n++
		}
	}
	return n
}

// Rows of a batch are copied while the next batch computes, which is not waited for.
func TestRowsAreCopiedBesideTheNextBatch(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	r.load(r.slots[0], tokenRange(1, 30), true)
	r.tiered.queue.hold(true)
	require.True(t, r.build())
	require.True(t, r.build() && r.compute())
	require.Equal(t, 1, r.tiered.queue.copying(), "the batch loop does not wait for the copy")
	require.True(t, r.launch())
	require.Len(t, r.device.queue, 2, "nothing is computed yet")
	r.settle()
	require.Len(t, r.device.queue, 1, "the second batch was waited for")
	require.Zero(t, r.device.waits())
	require.Len(t, r.tiered.opts.Store.(*memStore).pages, 1)
	r.drain()
}

// The rows that a call removes, replaces or rotates are copied before.
func TestRowsAreCopiedBeforeTheyLeave(t *testing.T) {
	for name, leave := range map[string]func(r *fakeRunner, slot *fakeSlot){
		"removed": func(r *fakeRunner, slot *fakeSlot) {
			r.finish(slot)
			r.load(slot, tokenRange(2, 46), true)
		},
		"replaced": func(r *fakeRunner, slot *fakeSlot) {
			r.run(r.slots[1], tokenRange(3, 40), nil, false)
			r.finish(slot)
			require.Equal(t, 40, r.fork(slot, tokenRange(3, 44)))
			r.load(slot, tokenRange(3, 44), true)
		},
		"rotated": func(r *fakeRunner, slot *fakeSlot) {
			slot.rest = inputsOf([]int32{500})
			require.True(t, r.build())
			r.shift(slot, 4, 20)
		},
		"closed": func(r *fakeRunner, slot *fakeSlot) {
			r.finish(slot)
			r.tiered.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 2, 48, Options{})
			prompt := tokenRange(1, 46)
			r.load(r.slots[0], prompt, true)
			r.tiered.queue.hold(true)
			r.drain()
			require.Equal(t, 5, r.tiered.queue.copying(), "five pages")

			leave(r, r.slots[0])
			r.drain() // computes rows in the cells that became free
			r.device.synchronize()
			r.tiered.queue.hold(false)
			r.settle()
			store.requireRight(t)
			require.Len(t, store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: prompt}).Exact, 6)
		})
	}
}

// Rows before those that leave are not waited for.
func TestRowsThatStayAreCopiedLater(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 64, Options{})
	prompt := tokenRange(1, 40)
	r.load(r.slots[0], prompt, true)
	r.complete(r.slots[0])
	r.settle()
	r.tiered.queue.hold(true)
	more := append(slices.Clone(prompt), tokenRange(2, 10)...)
	r.load(r.slots[0], more, true)
	r.complete(r.slots[0])
	require.Equal(t, 2, r.tiered.queue.copying(), "a page and a tail")
	r.cut(0, 50)
	require.Equal(t, 2, r.tiered.queue.copying())
	r.cut(0, 49)
	require.Zero(t, r.tiered.queue.copying())
}

// A page that could not be copied is counted, and stored when a request computes it again.
func TestACopyBesideABatchFails(t *testing.T) {
	silence(t)
	r, store := newStored(t, newFakeRunner, 1, 64, Options{})
	r.cache.onRead = func() error { return errRefused }
	prompt := tokenRange(1, 30)
	r.begin(r.slots[0], prompt, true)
	r.settle()
	require.Empty(t, store.pages)
	require.NotZero(t, r.tiered.Stats().FailedCopies)
	r.finish(r.slots[0])

	r.cache.onRead = nil
	r.save(r.slots[0], prompt)
	require.Len(t, store.pages, 3)
	require.LessOrEqual(t, r.tiered.Stats().FailedCopies, r.tiered.Stats().DroppedPages)
}

// The cache's memory is freed after the last copy has ended, although closing does not wait
// for a page that hangs.
func TestCloseWaitsForACopy(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 64, Options{})
	r.tiered.closeIn = time.Nanosecond
	reading, goOn := make(chan struct{}), make(chan struct{})
	first := true
	r.cache.onRead = func() error {
		if first {
			first = false
			close(reading)
			<-goOn
		}
		return nil
	}
	r.begin(r.slots[0], tokenRange(1, 20), true)
	<-reading
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.tiered.Close()
	}()
	r.tiered.queue.mu.Lock()
	for !r.tiered.queue.closed {
		r.tiered.queue.changed.Wait()
	}
	r.tiered.queue.mu.Unlock()
	select {
	case <-closed:
		t.Error("the cache was closed while its rows were read")
	default:
	}
	close(goOn)
	<-closed
	require.Zero(t, r.tiered.Stats().FailedCopies)
}

// The buffer of a page that is given up while it is copied is not used for another page before.
func TestAPageIsGivenUpWhileItIsCopied(t *testing.T) {
	q := newWriteQueue(newMemStore(t), 1<<20, func(*writeJob, error) {}, func() {})
	q.now = func() time.Time { return time.Unix(0, 0) }
	q.mu.Lock()
	q.outage.until = time.Unix(1, 0) // nothing is written
	q.mu.Unlock()
	parent, child, grandchild := pagefile.Key{1}, pagefile.Key{2}, pagefile.Key{3}
	buffer := q.stage(8, true)
	q.push(parent, &pagefile.Page{Payload: q.stage(8, true)}, false, nil)
	q.push(child, &pagefile.Page{Parent: parent, Payload: buffer}, false, &copyOut{begun: true})
	q.push(grandchild, &pagefile.Page{Parent: child, Payload: make([]byte, 4)}, false, &copyOut{})

	q.mu.Lock()
	q.drop(q.jobs[0])
	set := slices.Clone(q.jobs)
	q.mu.Unlock()
	require.Len(t, set, 1, "the page that is being copied")
	for range 2 {
		other := q.stage(8, true)
		require.NotSame(t, &buffer[0], &other[0])
	}
	require.ElementsMatch(t, []pagefile.Key{parent, grandchild}, q.takeDropped())
	q.endCopies(set, nil)
	require.Equal(t, []pagefile.Key{child}, q.takeDropped())
	q.checkInvariants(t)
	require.Empty(t, q.jobs)
	require.NoError(t, q.close(t.Context()))
}

// Every row is in one span, once, and no span is larger or has larger gaps than allowed.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := rapid.SliceOfN(rapid.SliceOfN(rapid.Int32Range(0, 60), 0, 12), 1, 4).Draw(t, "cells")
		gap, most := rapid.IntRange(0, 6).Draw(t, "gap"), rapid.IntRange(1, 30).Draw(t, "most")
		spans := spansOf(cells, gap, most)
		seen := make([][]int32, len(cells))
		for page := range cells {
			seen[page] = slices.Repeat([]int32{-1}, len(cells[page]))
		}
		for i := range spans {
			s := &spans[i]
			require.LessOrEqual(t, s.count, most)
			numbers, end := s.numbers(), 0
			for _, p := range s.pieces {
				require.LessOrEqual(t, p.at-end, gap)
				for j := range p.count {
					require.Equal(t, int32(-1), seen[p.page][p.row+j])
					seen[p.page][p.row+j] = numbers[p.at+j]
				}
				end = max(end, p.at+p.count)
			}
			require.Equal(t, s.count, end)
			require.Zero(t, s.pieces[0].at)
		}
		require.Equal(t, cells, seen)
	})
}

// A batch's time is known from the copy of its rows, which may end after the next batch.
func TestBatchesAreMeasuredByMarks(t *testing.T) {
	c, r, pass := newMeasured()
	for i := range 3 { // the runner goes on at once; the device takes 512 ms for a batch
		c.batchBuilt(i, batchOf(0), false)
		c.batchDone(i, false, r)
	}
	began := c.now()
	c.computed(0, began.Add(512*time.Millisecond), r)
	requireCost(t, r, time.Millisecond)
	require.Len(t, c.open, 2)
	c.computed(0, began.Add(time.Second), r) // tells nothing new
	c.computed(2, began.Add(3*512*time.Millisecond), r)
	requireCost(t, r, time.Millisecond)

	pass(2 * 512 * time.Millisecond)
	c.batchBuilt(3, batchOf(0), false) // waits for the device, which computes until 1,536 ms
	c.batchDone(3, false, r)
	c.computed(3, began.Add(4*512*time.Millisecond), r)
	requireCost(t, r, time.Millisecond)
	require.Empty(t, c.open)
}

// A mark whose pages were given up is freed with a later one.
func TestMarksOfPagesGivenUp(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	r.tiered.queue.hold(true)
	r.load(r.slots[0], tokenRange(1, 40), true)
	require.True(t, r.build() && r.compute())
	r.tiered.queue.mu.Lock()
	r.tiered.queue.drop(r.tiered.queue.jobs[0])
	r.tiered.queue.mu.Unlock()
	r.tiered.StartSequence(0, true) // pages given up are tried again
	for range 2 {
		require.True(t, r.build() && r.compute())
		require.NotEmpty(t, r.tiered.device.marks)
		r.settle()
	}
	require.True(t, r.build() && r.compute())
	require.Len(t, r.tiered.device.marks, 1)
	require.Equal(t, 3, r.device.marks)
}

// Two pages that share a cell need a buffer, of one row at least.
func TestSpansWithoutABuffer(t *testing.T) {
	c := newFakeCache(8, 1)
	for s := range c.sections() {
		for i := range c.rows[s] {
			c.rows[s][i] = byte(i)
		}
	}
	groups := groupsOf([]Rows{c})
	geo, err := measure(groups, nil, 1)
	require.NoError(t, err)
	layout, err := geo.layout(2, func(int) bool { return true })
	require.NoError(t, err)
	var pages []pageRows
	for _, cells := range [][]int32{{3, 5}, {3, 4}} {
		pages = append(pages, pageRows{layout, make([]byte, layout.Size()), [][]int32{cells}})
	}
	require.NoError(t, gatherSpans(groups, pages, func(int) bool { return true }, nil))
	for _, p := range pages {
		for i, s := range layout.Sections() {
			for row, cell := range p.cells[0] {
				n := int(s.RowBytes)
				require.Equal(t, c.row(section{int(s.Layer), s.Kind == pagefile.KindV}, cell), layout.Rows(p.payload, i)[row*n:(row+1)*n])
			}
		}
	}
}
