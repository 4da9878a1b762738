package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Transfers between the host and a device, and the host's waits for a device. A page of the
// fake model has fakeSections sections; of an 8B model it has 64, of a 70B model 160.

const (
	fakeSections  = 4 // K and V of two layers
	fakePageBytes = 8 * 2 * (fakeKeyBytes + fakeValueBytes)
)

// counted is the cost of some pages.
type counted struct {
	transfers
	pages int64 // full pages and tails
	waits int   // for all work of the device
}

func countedOf(r *fakeRunner) counted {
	s := r.tiered.Stats()
	return counted{r.device.transfers(), s.SealedPages + s.SealedTails, r.device.waits()}
}

// log prints the cost of pages since an earlier count, and returns transfers per section
// of a page, and bytes moved per byte of a page.
func (c counted) log(t *testing.T, r *fakeRunner, pages int64) (perSection, perByte float64) {
	now := countedOf(r)
	if pages == 0 {
		pages = now.pages - c.pages
	}
	moved := now.since(c.transfers)
	perSection = float64(moved.count) / float64(pages*fakeSections)
	perByte = float64(moved.bytes) / float64(pages*fakePageBytes)
	t.Logf("%d pages: %d transfers (%.2f for a section, so %.0f for a page of an 8B model), %.2f times the bytes, %d waits for the device",
		pages, moved.count, perSection, 64*perSection, perByte, now.waits-c.waits)
	return perSection, perByte
}

// prefilled is a runner that has computed 32 pages of a prompt, in batches of four pages.
func prefilled(t *testing.T, host bool) *fakeRunner {
	r := newFakeRunner(t, newMemStore(t), 1, 264, Options{})
	r.device.host = host
	r.batch = 32
	r.load(r.slots[0], tokenRange(1, 257), true)
	r.tiered.queue.hold(true)
	for len(r.slots[0].rest) > 1 {
		require.True(t, r.build() && r.compute())
		r.settle()
	}
	return r
}

func TestTransfersOfAPrompt(t *testing.T) {
	r := prefilled(t, false)
	perSection, perByte := counted{}.log(t, r, 0)
	require.LessOrEqual(t, perSection, 0.25, "the pages of a batch are copied together")
	require.LessOrEqual(t, perByte, 1.0)
	require.Zero(t, r.device.waits())
	require.LessOrEqual(t, r.device.marks, 8, "one for each batch")
}

// Rows in host memory are copied directly, page by page, before the next batch.
func TestTransfersOfAPromptOnTheHost(t *testing.T) {
	r := prefilled(t, true)
	perSection, perByte := counted{}.log(t, r, 0)
	require.LessOrEqual(t, perSection, 1.0)
	require.LessOrEqual(t, perByte, 1.0)
	require.LessOrEqual(t, r.device.waits(), 8, "one for each batch")
	require.Zero(t, r.device.marks)
	require.Nil(t, r.tiered.queue.copier.ended, "no goroutine copies")
}

func TestTransfersOfARestore(t *testing.T) {
	store := newMemStore(t)
	prompt := tokenRange(1, 257)
	r := newFakeRunner(t, store, 1, 264, Options{})
	r.save(r.slots[0], prompt)
	r = newFakeRunner(t, store, 1, 264, Options{})
	require.Equal(t, 256, r.load(r.slots[0], prompt, true).Held)
	perSection, perByte := counted{}.log(t, r, 32)
	require.LessOrEqual(t, perSection, 1.0)
	require.LessOrEqual(t, perByte, 1.0)
	require.Equal(t, 1, r.device.waits())
}

// Five slots that generate together take one cell each in turn: rows of a page lie alone.
func TestTransfersOfInterleavedSlots(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 5, 96, Options{})
	for i, slot := range r.slots {
		r.load(slot, tokenRange(1+i, 8+i), true)
	}
	r.drain()
	r.settle()
	before := countedOf(r)
	for n := range 80 {
		for _, slot := range r.slots {
			slot.rest = inputsOf([]int32{int32(900 + n)})
		}
		r.drain()
		r.settle()
	}
	perSection, perByte := before.log(t, r, 0)
	require.LessOrEqual(t, perSection, 1.0)
	require.LessOrEqual(t, perByte, 5.0, "rows of the other four slots")
	require.Zero(t, r.device.waits())
}
