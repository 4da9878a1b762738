package rates

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// link reads pages in parallel: each takes round trips, which overlap, and the bytes of one after the other.
type link struct{ trips, queue float64 }

// took is when the last of n pages is there, and first when the first one is.
func (l link) took(n int) (first, took float64) {
	first = l.trips + l.queue*float64(min(n, PagesAtOnce))
	return first, max(l.trips*groups(n), l.trips+l.queue*float64(n-1))
}

// learn gives rates the time of a run.
func (l link) learn(r *Rates, runs ...int) {
	for _, n := range runs {
		first, took := l.took(n)
		r.mu.Lock()
		r.tookLocked(pagesOf("remote", n), first, took)
		r.mu.Unlock()
	}
}

// predicted is the time of a run of pages.
func predicted(r *Rates, n int) float64 {
	sum := reading{rates: r}
	for _, page := range pagesOf("remote", n) {
		sum.add(page)
	}
	return sum.took()
}

// TestRoundTripsAreToldFromBytes: whatever the first runs were, the time of any other run is predicted.
func TestRoundTripsAreToldFromBytes(t *testing.T) {
	for name, l := range map[string]link{"round trips": {0.3, 0.001}, "bytes": {0.3, 0.3}, "both": {0.3, 0.15}} {
		for _, runs := range [][]int{{1, 2}, {1, 3}, {1, 5, 2}, {1, 64}, {1, 64, 3}, {1, 7, 2, 3}} {
			r := newRates(newClock())
			l.learn(r, runs...)
			for _, n := range []int{1, 2, 3, 4, 6, 16, 64} {
				_, want := l.took(n)
				require.InEpsilon(t, want, predicted(r, n), 0.06, "%s: %d pages after runs of %v", name, n, runs)
			}
		}
	}
}

// TestRoundTripsOfOnePageRefuseNoOthers: a page takes 0.3 s alone, and 0.256 s to compute.
func TestRoundTripsOfOnePageRefuseNoOthers(t *testing.T) {
	r := machine{token: 1e-3}.known(newClock(), 16384)
	link{trips: 0.3}.learn(r, 1)
	require.Zero(t, r.Plan(Chain{Pages: pagesOf("remote", 1)}))
	require.Equal(t, 63, r.Plan(Chain{Pages: pagesOf("remote", 63)}), "three at a time")

	w := r.Watch(Chain{Pages: pagesOf("remote", 63)}, PagesAtOnce)
	for n := 1; n <= 63; n++ {
		at := seconds(0.3 * groups(n))
		require.Less(t, at, w.Deadline())
		require.Equal(t, n < 63, w.Arrived(at))
	}
	require.Equal(t, 63, r.Plan(Chain{Pages: pagesOf("remote", 63)}))

	link{trips: 0.3, queue: 0.3}.learn(r, 16, 16, 16)
	require.Zero(t, r.Plan(Chain{Pages: pagesOf("remote", 63)}), "pages queue")
}

// TestOneByOne: pages that are read one by one tell nothing of queues.
func TestOneByOne(t *testing.T) {
	r := machine{token: 1e-3}.known(newClock(), 16384)
	link{trips: 0.2}.learn(r, 1, 3)
	w := r.Watch(Chain{Pages: pagesOf("remote", 16)}, 1)
	for n := 1; n <= 16; n++ {
		w.Arrived(seconds(0.2 * float64(n)))
	}
	require.InEpsilon(t, 0.2*groups(16), predicted(r, 16), 0.01)
}
