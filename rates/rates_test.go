package rates

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testPageTokens = 256
	testPageBytes  = 32 << 20
	kB, MB, GB     = 1e3, 1e6, 1e9
)

// clock is a clock that tests move.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Unix(1e9, 0)} }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

func newRates(c *clock) *Rates {
	return NewAt(func() time.Time { return c.now })
}

// machine holds the true costs of computing and reading.
type machine struct {
	token, perPosition float64            // seconds
	tiers              map[string]float64 // bytes per second
	latency            float64            // seconds of each page
	cached             int                // leading pages that are in the page cache: reading them takes no time
}

func (m machine) computing(begin, end int) float64 {
	n := float64(end - begin)
	return n * (m.token + m.perPosition*(float64(begin+end-1)/2))
}

// compute gives rates the times of a prompt computed in batches of 512.
func (m machine) compute(r *Rates, begin, end int) {
	for ; begin < end; begin += 512 {
		to := min(begin+512, end)
		r.Computed(to-begin, float64(begin+to-1)/2, seconds(m.computing(begin, to)))
	}
}

// learn gives rates the true time of reading from a tier.
func (m machine) learn(r *Rates, tier string) {
	for range 3 {
		r.mu.Lock()
		took := 4 * (m.latency + testPageBytes/m.tiers[tier])
		r.tookLocked(pagesOf(tier, 4), took, took)
		r.mu.Unlock()
	}
}

// known are rates that know the costs of computing some positions, and of reading from some tiers.
func (m machine) known(c *clock, positions int, tiers ...string) *Rates {
	r := newRates(c)
	m.compute(r, 0, positions)
	for _, tier := range tiers {
		m.learn(r, tier)
	}
	return r
}

// pagesOf is a chain of whole pages.
func pagesOf(tier string, n int) []Page {
	pages := make([]Page, n)
	for i := range pages {
		pages[i] = Page{Start: i * testPageTokens, Tokens: testPageTokens, Bytes: testPageBytes, Tier: tier}
	}
	return pages
}

func TestPlanReadsWhatNobodyKnows(t *testing.T) {
	r := newRates(newClock())
	require.Equal(t, 4, r.Plan(Chain{Pages: pagesOf("remote", 4)}))
	machine{token: 1e-6}.compute(r, 0, 4096)
	require.Equal(t, 4, r.Plan(Chain{Pages: pagesOf("remote", 4)}), "the tier's speed must be tried once")
	require.Zero(t, r.Plan(Chain{}))
}

// A token costs more near the end of a long prompt than near its beginning.
func TestPlanKnowsThatPositionsDiffer(t *testing.T) {
	m := machine{token: 1e-4, perPosition: 1e-7, tiers: map[string]float64{"remote": 200 * MB}}
	r := m.known(newClock(), 32768, "remote")
	require.Zero(t, r.Plan(Chain{Pages: pagesOf("remote", 4)}))
	require.Equal(t, 124, r.Plan(Chain{Base: 4 * testPageTokens, Pages: pagesOf("remote", 128)[4:]}))
}

// The plan is the best possible, for any costs.
func TestPlanIsTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := machine{
			token:       rapid.Float64Range(1e-5, 1e-1).Draw(t, "token"),
			perPosition: rapid.Float64Range(0, 1e-6).Draw(t, "per position"),
			tiers: map[string]float64{
				"local":  rapid.Float64Range(10*MB, 10*GB).Draw(t, "local"),
				"remote": rapid.Float64Range(1*MB, 1*GB).Draw(t, "remote"),
			},
		}
		r := m.known(newClock(), 8192, "local", "remote")
		pages := pagesOf("local", rapid.IntRange(1, 24).Draw(t, "pages"))
		for i := range pages {
			pages[i].Tier = rapid.SampledFrom([]string{"local", "remote"}).Draw(t, "tier")
		}
		last := pages[len(pages)-1].end()
		cost := func(n int) float64 {
			sum, begin := 0.0, 0
			for _, p := range pages[:n] {
				sum += testPageBytes / m.tiers[p.Tier]
				begin = p.end()
			}
			return sum + m.computing(begin, last)
		}
		least := cost(0)
		for n := range pages {
			least = min(least, cost(n+1))
		}
		if got := cost(r.Plan(Chain{Pages: pages})); got > least*1.001+gainMin {
			t.Fatalf("planned %v s, %v s were possible", got, least)
		}
	})
}

// Pages that take almost no time to read or to compute are read.
func TestPlanDoesNotMindMilliseconds(t *testing.T) {
	m := machine{token: 1e-6, tiers: map[string]float64{"local": 10 * GB}}
	r := m.known(newClock(), 4096, "local")
	require.Equal(t, 1, r.Plan(Chain{Pages: pagesOf("local", 1)}))
	require.Zero(t, r.Plan(Chain{Pages: pagesOf("local", 4)}))

	w := r.Watch(Chain{Pages: []Page{{Tokens: 1, Bytes: 1000, Tier: "remote"}}}, testAhead)
	require.Equal(t, 20*time.Millisecond, w.Deadline(), "a page of one token")
}

func TestSmallBatchesSayNothing(t *testing.T) {
	r := newRates(newClock())
	r.Computed(batchTokensMin-1, 0, time.Second)
	require.False(t, r.compute.known())
	r.Computed(batchTokensMin, 0, time.Second)
	require.True(t, r.compute.known())
}

// TestSmallBatchesCorrectATooHighPrediction: where every prompt is read, no larger batch comes,
// and reading would be chosen for ever. Slow small batches show nothing.
func TestSmallBatchesCorrectATooHighPrediction(t *testing.T) {
	r := newRates(newClock())
	busy := machine{token: 0.05, tiers: map[string]float64{"remote": GB / 100}}
	busy.compute(r, 0, 4096)
	busy.learn(r, "remote")
	chain := Chain{Pages: pagesOf("remote", 8)}
	require.Equal(t, 8, r.Plan(chain))
	before := r.Computing(0, 2048)
	for range 100 {
		r.Computed(20, 1000, 20*time.Second)
	}
	require.Equal(t, before, r.Computing(0, 2048))
	for range 100 {
		r.Computed(20, 1000, 10*time.Millisecond)
	}
	require.Zero(t, r.Plan(chain))
}

// TestAStepAfterReadingCounts: pages from a quick tier are computed where the step behind is
// slower than computing, and the step is tried again later.
func TestAStepAfterReadingCounts(t *testing.T) {
	c := newClock()
	m := machine{token: 0.001, tiers: map[string]float64{"local": GB}}
	r := m.known(c, 4096, "local")
	chain := Chain{Pages: pagesOf("local", 8), Then: "load"}
	require.Equal(t, 8, r.Plan(chain))

	r.Stepped(chain, 8*time.Second)
	require.Zero(t, r.Plan(chain))
	require.Equal(t, 8, r.Plan(Chain{Pages: chain.Pages}))
	require.False(t, r.Watch(chain, 1).Arrived(33*time.Millisecond))
	require.Equal(t, 8, r.Plan(Chain{Pages: chain.Pages}), "the tier is not to blame")
	c.pass(probeEvery)
	require.Equal(t, 8, r.Plan(chain))

	for range 3 {
		r.Stepped(chain, 80*time.Millisecond)
	}
	require.Equal(t, 8, r.Plan(chain))
	r.Stepped(Chain{Then: "load"}, time.Hour) // of no page
	require.Equal(t, 8, r.Plan(chain))
}

// TestReading: a page takes as long as those before, from a tier or through a step.
func TestReading(t *testing.T) {
	c := newClock()
	r := newRates(c)
	page := pagesOf("local", 1)[0]
	require.Zero(t, r.Reading(page))
	r.Probed([]Page{page}, 2*time.Second, true)
	require.InDelta(t, 2, r.Reading(page).Seconds(), 1e-6)

	page.Tier = "save"
	require.Zero(t, r.Reading(page))
	r.Stepped(Chain{Pages: []Page{page}, Then: "save"}, time.Second)
	c.pass(probeEvery)
	require.InDelta(t, 1, r.Reading(page).Seconds(), 1e-6)
	page.Bytes *= 2
	require.InDelta(t, 2, r.Reading(page).Seconds(), 1e-6)
}

// TestPagesBeforeTheBase are read for those behind, and never for their own sake.
func TestPagesBeforeTheBase(t *testing.T) {
	m := machine{token: 0.001, tiers: map[string]float64{"local": GB, "slow": 100 * MB}}
	r := m.known(newClock(), 4096, "local", "slow") // a page of slow takes 336 ms to read, and 256 ms to compute
	base := 4 * testPageTokens
	require.Equal(t, 8, r.Plan(Chain{Base: base, Pages: pagesOf("local", 8)}))
	require.Zero(t, r.Plan(Chain{Base: base, Pages: pagesOf("slow", 8)}))
	require.Zero(t, r.Plan(Chain{Base: base, Pages: pagesOf("local", 4)}))
	require.Equal(t, base, Chain{Base: base, Pages: pagesOf("local", 8)}.After(2).Base)
}

// TestSavedIsNoMoreThanWasMeasured: a prompt took 13.05 s, and 1.18 s when it was restored. Batches
// beside other work had been slower.
func TestSavedIsNoMoreThanWasMeasured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	r, err := Open(path, "m", nil)
	require.NoError(t, err)
	require.Zero(t, r.Saved(0, 1114, time.Second), "nothing was measured")
	for range 3 {
		r.Computed(512, 256, 512*15600*time.Microsecond)
	}
	require.Greater(t, r.Computing(0, 1114), 17*time.Second)
	r.Whole(1114, 13050*time.Millisecond)
	r.Whole(1114, 20*time.Second) // beside other work
	want := (13050 - 1180) * time.Millisecond
	require.InDelta(t, want, r.Saved(0, 1114, 1180*time.Millisecond), float64(time.Millisecond))
	require.NoError(t, r.Close())

	again, err := Open(path, "m", nil)
	require.NoError(t, err)
	require.InDelta(t, want, again.Saved(0, 1114, 1180*time.Millisecond), float64(time.Millisecond), "after a restart")
	require.InDelta(t, want/2, again.Saved(557, 1114, 13050*time.Millisecond/2-want/2), float64(10*time.Millisecond), "half was in the slot")
	require.Zero(t, again.Saved(0, 1114, time.Minute), "it cost more than computing")
	require.Zero(t, again.Saved(0, 1114, 0), "it did not end")
	require.LessOrEqual(t, again.Saved(0, 100, time.Nanosecond), 13050*time.Millisecond*100/1114)
	require.NoError(t, again.Close())
}

// The prompts that are kept are bounded.
func TestWholePromptsAreBounded(t *testing.T) {
	r := New()
	for n := 1; n > 0 && n < 1<<40; n *= 2 {
		r.Whole(n, time.Second)
		r.Whole(n, 2*time.Second)
		r.Whole(-n, time.Second)
		r.Whole(n, -time.Second)
	}
	require.LessOrEqual(t, len(r.whole), wholeMax)
}
