package rates

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refusing returns rates that refuse a slow remote tier.
func refusing(c *clock) (*Rates, machine) {
	r := newRates(c)
	m := machine{token: 1e-3, tiers: map[string]float64{"remote": 1 * MB}}
	m.compute(r, 0, 16384)
	m.learn(r, "remote")
	return r, m
}

func TestRefusedTierIsProbedNowAndThen(t *testing.T) {
	c := newClock()
	r, _ := refusing(c)
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
	r, _ := refusing(newClock())
	pages := append(pagesOf("remote", 1), pagesOf("local", 4)[1:]...)
	n, _ := r.Probe(Chain{Pages: pages}, testAhead)
	require.Equal(t, 1, n)
}

// A tier that is quick again is soon read from again.
func TestProbeFindsThatATierIsQuickAgain(t *testing.T) {
	c := newClock()
	r, _ := refusing(c)
	pages := pagesOf("remote", 16)
	for probes := 0; r.Plan(Chain{Pages: pages}) == 0; probes++ {
		require.Less(t, probes, 3)
		c.pass(probeEvery)
		n, _ := r.Probe(Chain{Pages: pages}, testAhead)
		r.Probed(pages[:n], time.Duration(n)*10*time.Millisecond, true)
	}
	require.Equal(t, 16, r.Plan(Chain{Pages: pages}))
}

// A tier that was too slow once is trusted again after a probe in time, and not before.
func TestProbeAfterADisappointment(t *testing.T) {
	c := newClock()
	r := newRates(c)
	m := machine{token: 1e-3, tiers: map[string]float64{"remote": 500 * MB}}
	m.compute(r, 0, 16384)
	m.learn(r, "remote")
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
	r := newRates(newClock())
	m.compute(r, 0, 65536)
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
