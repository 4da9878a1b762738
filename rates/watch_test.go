package rates

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testAhead = 3

// restore simulates a restore of pages on a machine whose tiers share their bandwidth among
// concurrent reads. restore returns the seconds to the end of the last page, computing
// included, and the number of pages that were read.
func (m machine) restore(r *Rates, c Chain) (total float64, in int) {
	last := c.end()
	pages := c.Pages[:r.Plan(c)]
	if len(pages) == 0 {
		return m.computing(0, last), 0
	}
	c.Pages = pages
	w := r.Watch(c, testAhead)
	now, left := 0.0, make([]float64, len(pages)) // left: seconds that each page would take alone
	for i, p := range pages {
		left[i] = m.reading(i, p)
	}
	for in < len(pages) {
		reading := pages[in:min(in+testAhead, len(pages))]
		if w.Alone() {
			reading = reading[:1]
		}
		deadline := w.Deadline().Seconds()
		for left[in] > 1e-9 {
			// the next read ends after each has had an equal share
			busy, least := 0, math.Inf(1)
			for i := range reading {
				if l := left[in+i]; l > 1e-9 {
					busy, least = busy+1, min(least, l)
				}
			}
			if at := now + least*float64(busy); at > deadline {
				w.GaveUp(seconds(deadline))
				return deadline + m.computing(c.After(in).Base, last), in
			}
			now += least * float64(busy)
			for i := range reading {
				left[in+i] -= least
			}
		}
		in++
		if !w.Arrived(seconds(now)) {
			break
		}
	}
	if in == len(pages) {
		return now + m.computing(pages[in-1].end(), last), in
	}
	return now + m.computing(c.After(in).Base, last), in
}

// reading is the time that page i of a chain takes if it is read alone.
func (m machine) reading(i int, p Page) float64 {
	if i < m.cached {
		return 0.001
	}
	return m.latency + float64(p.Bytes)/m.tiers[p.Tier]
}

// alternatives are the two times that a restore is compared with: all pages read, and all computed.
func (m machine) alternatives(pages []Page) (read, compute float64) {
	for i, p := range pages {
		read += m.reading(i, p)
	}
	return read, m.computing(0, pages[len(pages)-1].end())
}

var (
	testRates  = []float64{1 * GB, 300 * MB, 100 * MB, 30 * MB, 10 * MB, 3 * MB, 1 * MB}
	testTokens = map[string]machine{
		"fast GPU": {token: 1.0 / 5000, perPosition: 1e-8},
		"old GPU":  {token: 1.0 / 300, perPosition: 2e-7},
		"CPU":      {token: 1.0 / 30, perPosition: 5e-6},
	}
	testLengths = []int{1, 2, 16, 64}
)

func eachMachine(t *testing.T, test func(t *testing.T, m machine, pages []Page)) {
	for name, m := range testTokens {
		for _, rate := range testRates {
			for _, n := range testLengths {
				for _, latency := range []float64{0, 0.02} {
					m.tiers, m.latency = map[string]float64{"remote": rate}, latency
					t.Run(fmt.Sprintf("%s/%v MB per s/%d pages/%v s latency", name, rate/MB, n, latency), func(t *testing.T) {
						test(t, m, pagesOf("remote", n))
					})
				}
			}
		}
	}
}

// With both rates known, a prompt is never slower than the better alternative by more than a tenth.
func TestNeverSlowerThanTheBetter(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine, pages []Page) {
		r := m.known(newClock(), 16384, "remote")
		read, compute := m.alternatives(pages)
		for range 3 { // observations of a restore do not make the next restore worse
			total, _ := m.restore(r, Chain{Pages: pages})
			require.LessOrEqual(t, total, 1.1*min(read, compute), "read %.3f s, compute %.3f s", read, compute)
		}
	})
}

// firstMost bounds the time that a tier costs which is not known, in pages that are computed: those in whose
// time the first page could still have paid, and after it those in whose time the next could.
func firstMost(pages int) float64 { return min(float64(pages), 2*testAhead) }

// An unknown tier costs at most the time to compute six more pages, and never more than the prompt's: reading a
// page alone does not tell whether others queue behind it. Restores of two pages find that out at the second one.
func TestFirstReadIsBounded(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine, pages []Page) {
		r := m.known(newClock(), 16384)
		read, compute := m.alternatives(pages)
		page := compute / float64(len(pages))
		total, _ := m.restore(r, Chain{Pages: pages})
		require.LessOrEqual(t, total, compute+1.001*page*firstMost(len(pages)), "read %.3f s, compute %.3f s", read, compute)
		if read < 0.9*compute {
			require.LessOrEqual(t, total, 1.001*read)
		}
		if len(pages) == 2 {
			total, _ = m.restore(r, Chain{Pages: pages})
			require.LessOrEqual(t, total, compute+1.3*page*firstMost(len(pages)))
		}
		total, _ = m.restore(r, Chain{Pages: pages})
		require.LessOrEqual(t, total, 1.1*min(read, compute), "then it is known")
	})
}

// Leading pages in the page cache, such as a system prompt that all conversations share, say
// nothing about the speed of the tier.
func TestPagesInThePageCacheAreNoPace(t *testing.T) {
	m := machine{token: 1.0 / 300}
	page := m.computing(0, testPageTokens)
	for _, cached := range []int{1, 2, 3, 4, 7} {
		for _, ratio := range []float64{0.2, 0.34, 0.4, 0.5, 0.6, 0.8} {
			for _, indivisible := range []bool{false, true} {
				m.cached, m.tiers = cached, map[string]float64{"local": testPageBytes / (ratio * page)}
				r := m.known(newClock(), 16384, "local")
				pages := pagesOf("local", 20)
				read, _ := m.alternatives(pages)
				total, in := m.restore(r, Chain{Pages: pages, Indivisible: indivisible})
				require.Equal(t, 20, in, "%d cached, reading takes %.2f of computing", cached, ratio)
				require.LessOrEqual(t, total, 1.001*read)
				require.Equal(t, 20, r.Plan(Chain{Pages: pages}), "the next time as well")
			}
		}
	}
}

// A tier that hung is waited for as long as reading can pay, at any position: four pages are read in two round trips.
func TestATierThatHungIsNotWaitedForLonger(t *testing.T) {
	m := machine{token: 1e-3, perPosition: 4e-8}
	r := m.known(newClock(), 65536)
	w := r.Watch(Chain{Pages: pagesOf("remote", 1)}, testAhead)
	w.GaveUp(w.Deadline())
	late := pagesOf("remote", 4)
	for i := range late {
		late[i].Start += 60000
	}
	chain := Chain{Base: 60000, Pages: late}
	require.NotZero(t, r.Plan(chain), "computing costs more there")
	page := m.computing(60000, 60000+len(late)*testPageTokens) / float64(len(late))
	require.InEpsilon(t, 2*page, r.Watch(chain, testAhead).Deadline().Seconds(), 0.1)
}

// The wait for the first page is also bounded when computing was never observed.
func TestFirstReadOfANewModelIsBounded(t *testing.T) {
	r := newRates(newClock())
	m := machine{token: 1e-4, tiers: map[string]float64{"remote": 1 * MB}}
	total, in := m.restore(r, Chain{Pages: pagesOf("remote", 16)})
	require.Zero(t, in)
	require.Less(t, total, 7.0)
}

// The bounds also hold where pages are of use only all together, and pages read before are lost.
func TestWholeChainsAreNeverSlower(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine, pages []Page) {
		r := m.known(newClock(), 16384)
		read, compute := m.alternatives(pages)
		total, _ := m.restore(r, Chain{Pages: pages, Indivisible: true})
		require.LessOrEqual(t, total, compute+1.001*compute/float64(len(pages))*(1+firstMost(len(pages))), "the first time: read %.3f s, compute %.3f s", read, compute)
		if len(pages) == 2 {
			_, _ = m.restore(r, Chain{Pages: pages, Indivisible: true})
		}
		for range 3 {
			total, _ = m.restore(r, Chain{Pages: pages, Indivisible: true})
			require.LessOrEqual(t, total, 1.1*min(read, compute), "read %.3f s, compute %.3f s", read, compute)
		}
	})
}

// A restore gives up a tier that becomes slow.
func TestRestoreStopsWhenATierBecomesSlow(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine, pages []Page) {
		r := m.known(newClock(), 16384, "remote")
		predicted, compute := m.alternatives(pages)
		planned := r.Plan(Chain{Pages: pages})
		m.tiers["remote"] /= 1000
		total, _ := m.restore(r, Chain{Pages: pages})
		page := compute / float64(len(pages))
		patience := page + testAhead*predicted/float64(len(pages))
		require.LessOrEqual(t, total, compute+1.001*patience)
		again, in := m.restore(r, Chain{Pages: pages})
		if planned > 0 {
			require.Zero(t, in, "it is known at once")
			require.InEpsilon(t, compute, again, 1e-6)
		}
	})
}

func TestSlowingDownIsNoticedBetweenPages(t *testing.T) {
	m := machine{token: 1e-3, tiers: map[string]float64{"remote": 1 * GB}}
	r := m.known(newClock(), 16384, "remote")
	pages := pagesOf("remote", 64)
	w := r.Watch(Chain{Pages: pages}, testAhead)
	require.False(t, w.Alone())
	// each page arrives in time but takes a fifth longer than computing it
	for i := range pages {
		at := time.Duration(i+1) * 256 * time.Millisecond * 6 / 5
		require.Less(t, at, w.Deadline())
		if !w.Arrived(at) {
			require.Less(t, i, 12)
			require.Zero(t, r.Plan(Chain{Pages: pages}), "the next prompt does not wait either")
			return
		}
	}
	t.Fatal("nobody noticed")
}

func TestQuickTierIsWatchedWithPatience(t *testing.T) {
	m := machine{token: 1e-3, tiers: map[string]float64{"local": 1 * GB}}
	r := m.known(newClock(), 16384, "local")
	w := r.Watch(Chain{Pages: pagesOf("local", 8)}, testAhead)
	require.Greater(t, w.Deadline(), 256*time.Millisecond, "the time to compute a page")
	require.Less(t, w.Deadline(), 400*time.Millisecond)
	require.True(t, w.Arrived(250*time.Millisecond), "one delay is small against the gain of the rest")
	for range 6 {
		require.True(t, w.Arrived(280*time.Millisecond))
	}
	require.False(t, w.Arrived(300*time.Millisecond), "all pages arrived")
	require.Equal(t, 8, r.Plan(Chain{Pages: pagesOf("local", 8)}))
}

// In a chain through several tiers each tier is measured separately.
func TestTiersOfAChainAreToldApart(t *testing.T) {
	m := machine{token: 1.0 / 30, tiers: map[string]float64{"local": 1 * GB, "remote": 20 * MB}}
	r := m.known(newClock(), 16384)
	pages := append(pagesOf("local", 4), pagesOf("remote", 12)[4:]...)
	_, in := m.restore(r, Chain{Pages: pages})
	require.Equal(t, 12, in)
	require.InEpsilon(t, testPageBytes/(1*GB), r.Reading(Page{Bytes: testPageBytes, Tier: "local"}).Seconds(), 0.5)
	require.InEpsilon(t, testPageBytes/(20*MB), r.Reading(Page{Bytes: testPageBytes, Tier: "remote"}).Seconds(), 0.5)
}

// refusing returns rates that refuse a slow remote tier.
func refusing(c *clock) *Rates {
	return machine{token: 1e-3, tiers: map[string]float64{"remote": 1 * MB}}.known(c, 16384, "remote")
}

func TestRefusedTierIsProbedNowAndThen(t *testing.T) {
	c := newClock()
	r := refusing(c)
	pages := pagesOf("remote", 16)
	require.Zero(t, r.Plan(Chain{Pages: pages}))
	n, limit := r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, testAhead, n)
	require.InEpsilon(t, 2*testAhead*0.256, limit.Seconds(), 0.01)
	r.Probed(pages[:n], limit, false)
	for range 5 {
		n, _ = r.Probe(Chain{Pages: pages}, testAhead)
		require.Zero(t, n, "not again at once")
		c.pass(10 * time.Second)
	}
	c.pass(probeEvery)
	n, _ = r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, testAhead, n)
	c.pass(-time.Hour)
	n, _ = r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, testAhead, n, "a clock set back does not end probing")
	n, _ = r.Probe(Chain{}, testAhead)
	require.Zero(t, n)
}

func TestProbeReadsOneTier(t *testing.T) {
	r := refusing(newClock())
	pages := append(pagesOf("remote", 1), pagesOf("local", 4)[1:]...)
	n, _ := r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, 1, n)
}

// A tier that is quick again is soon read from again.
func TestProbeFindsThatATierIsQuickAgain(t *testing.T) {
	c := newClock()
	r := refusing(c)
	pages := pagesOf("remote", 16)
	for probes := 0; r.Plan(Chain{Pages: pages}) < len(pages); probes++ {
		require.Less(t, probes, 3)
		c.pass(probeEvery)
		n, _ := r.Probe(Chain{Pages: pages}, testAhead)
		r.Probed(pages[:1], 10*time.Millisecond, true)
		r.Probed(pages[1:n], time.Duration(n-1)*10*time.Millisecond, true)
	}
	require.Equal(t, 16, r.Plan(Chain{Pages: pages}))
}

// A tier that was too slow once is trusted again after a probe in time, and not before.
func TestProbeAfterADisappointment(t *testing.T) {
	c := newClock()
	m := machine{token: 1e-3, tiers: map[string]float64{"remote": 500 * MB}}
	r := m.known(c, 16384, "remote")
	pages := pagesOf("remote", 16)
	n, _ := r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, testAhead, n)
	w := r.Watch(Chain{Pages: pages}, testAhead)
	w.GaveUp(w.Deadline())
	require.Zero(t, r.Plan(Chain{Pages: pages}))

	n, limit := r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, testAhead, n, "at once, although there was a probe just now")
	r.Probed(pages[:n], limit, false)
	require.Zero(t, r.Plan(Chain{Pages: pages}))

	c.pass(probeEvery)
	n, _ = r.Probe(Chain{Pages: pages}, testAhead)
	r.Probed(pages[:n], time.Duration(n)*50*time.Millisecond, true)
	require.Equal(t, 16, r.Plan(Chain{Pages: pages}))
}

// A probe whose pages do not arrive marks the tier slow, also where computing costs more.
func TestProbeOfATierThatHangs(t *testing.T) {
	m := machine{token: 1e-3, perPosition: 4e-8}
	r := m.known(newClock(), 65536)
	early, late := pagesOf("remote", 1), pagesOf("remote", 4)
	for i := range late {
		late[i].Start += 60000
	}
	w := r.Watch(Chain{Pages: early}, testAhead)
	w.GaveUp(w.Deadline())
	require.Zero(t, r.Plan(Chain{Pages: early}))
	require.NotZero(t, r.Plan(Chain{Base: 60000, Pages: late}))
	n, limit := r.Probe(Chain{Base: 60000, Pages: late}, testAhead)
	require.Equal(t, testAhead, n)
	r.Probed(late[:n], limit, false)
	require.Zero(t, r.Plan(Chain{Base: 60000, Pages: late}))
}

// TestAProbeInVainRefusesEveryLength: no prompt tries again what a probe did not read in twice the time of computing.
func TestAProbeInVainRefusesEveryLength(t *testing.T) {
	r := machine{token: 1e-3}.known(newClock(), 16384)
	n, limit := r.Probe(Chain{Pages: pagesOf("remote", 3)}, testAhead)
	r.Probed(pagesOf("remote", 1), limit/2, true)
	r.Probed(pagesOf("remote", n)[1:], limit/2, false)
	for n := range 64 {
		require.Zero(t, r.Plan(Chain{Pages: pagesOf("remote", n)}), "%d pages", n)
	}
}
