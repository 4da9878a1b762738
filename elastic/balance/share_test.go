package balance

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
)

func TestShare(t *testing.T) {
	busy := func(used, lacking int64) segment.Segment { return segment.Segment{Used: used, Lacking: lacking} }
	idle := func(used int64) segment.Segment { return segment.Segment{Used: used, Spare: used} }
	for _, test := range []struct {
		name     string
		segments []segment.Segment
		want     []int64
	}{
		{"nobody", nil, nil},
		{"one", []segment.Segment{idle(0)}, []int64{800}},
		{"both idle", []segment.Segment{idle(0), idle(0)}, []int64{400, 400}},
		{"conversations are kept where there is memory", []segment.Segment{idle(600), idle(0)}, []int64{650, 150}},
		{"work comes before conversations", []segment.Segment{idle(800), busy(160, 160)}, []int64{440, 360}},
		{"a floor stays", []segment.Segment{idle(0), busy(800, 800)}, []int64{100, 700}},
		{"too much work is done in turn", []segment.Segment{busy(100, 700), busy(300, 700), busy(80, 0)}, []int64{420, 300, 80}},
		{"out of turn where nothing runs", []segment.Segment{busy(500, 700), {Promised: 20, Lacking: 600}}, []int64{500, 300}},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, Share(800, test.segments, 0)) })
	}
}

// TestShareAddsUp: for any segments shares are not negative and add up to the budget at most.
func TestShareAddsUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		budget := r.Int64N(1 << 40)
		segments := make([]segment.Segment, 1+r.IntN(6))
		for i := range segments {
			segments[i] = segment.Segment{Limit: r.Int64N(1 << 41), Used: r.Int64N(1 << 40), Kept: r.Int64N(1 << 20), Spare: r.Int64N(1 << 40), Lacking: r.Int64N(segment.LimitMax)}
		}
		sum := int64(0)
		for _, share := range Share(budget, segments, r.IntN(100)) {
			require.GreaterOrEqual(t, share, int64(0))
			sum += share
		}
		require.LessOrEqual(t, sum, budget)
	}
}

// A process is a model of one that holds KV memory: requests come in bursts, wait until they have
// room, end, and leave a conversation behind. Others see it as it was at its last look.
type process struct {
	segment.Segment
	limit            int64   // in force
	running, waiting []int64 // bytes each request needs in all
	idle             []int64
	served           int
}

const unit = 1 << 20

func sum(sizes ...[]int64) (n int64) {
	for _, some := range sizes {
		for _, size := range some {
			n += size
		}
	}
	return n
}

// work is a while of its work.
func (p *process) work(r *rand.Rand) {
	if len(p.running) > 0 && r.IntN(3) == 0 { // one ends
		p.idle = append(p.idle, p.running[0])
		p.running = p.running[1:]
		p.served++
	}
	for len(p.waiting) > 0 && sum(p.running)+p.waiting[0] <= p.limit {
		for sum(p.running, p.idle)+p.waiting[0] > p.limit {
			p.idle = p.idle[1:]
		}
		p.running, p.waiting = append(p.running, p.waiting[0]), p.waiting[1:]
	}
}

// look is its round with the segment.
func (p *process) look() {
	p.limit = p.Limit
	for len(p.idle) > 0 && sum(p.running, p.idle) > p.limit {
		p.idle = p.idle[1:]
	}
	p.InForce, p.Used, p.Spare, p.Lacking = p.limit, sum(p.running, p.idle), sum(p.idle), sum(p.waiting)
}

// TestLimitsAreWithinTheBudget: through bursts the memory in use stays within the budget, whenever
// processes look, every request is served, and limits rest while load does.
func TestLimitsAreWithinTheBudget(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		const budget = 64 * unit
		processes := []*process{{}, {}, {}}
		for i, p := range processes {
			p.Name, p.Limit, p.limit = string(rune('a'+i)), budget/3, budget/3
			p.look()
		}
		asked := 0
		for round := range 4000 {
			if round < 3000 && round%50 == 0 { // a burst at one of them
				p := processes[r.IntN(len(processes))]
				for range 1 + r.IntN(6) {
					p.waiting = append(p.waiting, int64(1+r.IntN(40))*unit)
					asked++
				}
			}
			segments := make([]segment.Segment, len(processes))
			held := int64(0)
			for i, p := range processes {
				if r.IntN(2) == 0 {
					p.look()
				}
				p.work(r)
				segments[i] = p.Segment
				held += max(p.limit, sum(p.running, p.idle))
			}
			require.LessOrEqual(t, held, int64(budget), "seed %d, round %d", seed, round)
			changes := Changes(budget, segments, round/20)
			if round > 3900 {
				require.Empty(t, changes, "seed %d: limits move while nothing else does", seed)
			}
			for _, change := range changes {
				i := slices.IndexFunc(processes, func(p *process) bool { return p.Name == change.Name })
				require.Equal(t, processes[i].Limit, change.From)
				processes[i].Limit = change.To
			}
		}
		served := 0
		for _, p := range processes {
			served += p.served
			require.Empty(t, p.waiting, "seed %d: requests of %s starve", seed, p.Name)
		}
		require.Equal(t, asked, served, "seed %d", seed)
	}
}

// TestChangesAboveTheBudget: limits that add up to more, as those of new processes do, come down first.
func TestChangesAboveTheBudget(t *testing.T) {
	changes := Changes(800, []segment.Segment{
		{Name: "a", Limit: 4000, Used: 700, Spare: 100},
		{Name: "b", Limit: 4000},
	}, 0)
	require.Equal(t, []Change{{"a", 4000, 700}, {"b", 4000, 100}}, changes)
}

// TestLimitsSlightlyAboveTheBudgetFall: many changes that are too small to matter would matter together.
func TestLimitsSlightlyAboveTheBudgetFall(t *testing.T) {
	for _, n := range []int{2, 7, 30} {
		segments := make([]segment.Segment, n)
		sum := int64(0)
		for i := range segments {
			segments[i] = segment.Segment{Name: string(rune('a' + i)), Limit: 8000/int64(n) + 200, InForce: 8000/int64(n) + 200, Used: 10}
		}
		for _, c := range Changes(8000, segments, 0) {
			require.Less(t, c.To, c.From)
			sum += c.To
		}
		require.LessOrEqual(t, sum, int64(8000), "%d processes", n)
		require.Positive(t, sum)
	}
}
