package team

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/trace"
	"github.com/kvtier/kvtier/internal/bench/virtual"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// Day is a team's day: some servers, and requests that a gateway sends to them.
type Day struct {
	Model
	Name         string
	Boxes        int
	Sticky       bool // a conversation goes to one server, by a hash of its beginning; else to any
	Link              // to the engine
	Disk         Link // local
	LocalBytes   int64
	EngineBytes  int64 // 0 without an engine
	ThroughBytes int64 // OLLAMA_KV_TIER_SHARE_GB_PER_DAY
}

// Row is what a day took. Given back are shares of all tokens of prompts.
type Row struct {
	Setup       string  `json:"boxes"`
	Given       float64 `json:"given_back"`
	Local       float64 `json:"local"`
	Remote      float64 `json:"remote"`
	BytesTo     int64   `json:"to_engine" unit:"B"`
	BytesFrom   int64   `json:"from_engine" unit:"B"`
	Requests    int     `json:"requests"`
	P50         float64 `json:"p50" unit:"s"` // of the first token
	P99         float64 `json:"p99" unit:"s"`
	ComputedP50 float64 `json:"computing_p50" unit:"s"`
	ComputedP99 float64 `json:"computing_p99" unit:"s"`
}

// Run simulates the day.
func (d Day) Run(ctx context.Context, requests []trace.Request) (row Row, err error) {
	t := &team{Day: d, clock: &virtual.Clock{}, any: rand.New(rand.NewPCG(1, 2))}
	if d.EngineBytes > 0 {
		t.remote = &remote{Map: tiertest.NewMap(), files: d.Files, most: int(d.EngineBytes / d.blockBytes())}
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for range d.Boxes {
		b, err := openBox(ctx, d, t.clock, t.remote)
		if err != nil {
			return row, err
		}
		t.boxes = append(t.boxes, b)
	}
	var sum served
	var first, computing []float64
	for _, r := range requests {
		t.clock.Set(r.At)
		s, err := t.to(r).serve(ctx, r)
		if err != nil {
			return row, err
		}
		sum.local += s.local
		sum.remote += s.remote
		first, computing = append(first, s.first), append(computing, s.computing)
	}
	share := func(pages int) float64 { return float64(pages*trace.BlockTokens) / float64(tokens(requests)) }
	row = Row{
		Setup: d.String(), Given: share(sum.local + sum.remote), Local: share(sum.local), Remote: share(sum.remote),
		P50: measure.Quantile(first, 0.5), P99: measure.Quantile(first, 0.99),
		ComputedP50: measure.Quantile(computing, 0.5), ComputedP99: measure.Quantile(computing, 0.99),
	}
	if r := t.remote; r != nil {
		row.BytesTo, row.BytesFrom = int64(r.in)*d.blockBytes(), int64(r.out)*d.blockBytes()
		row.Requests = r.requests + int((row.BytesTo+row.BytesFrom)/stepBytes)
	}
	return row, nil
}

func (d Day) String() string {
	switch {
	case d.Boxes == 1:
		return "1, " + d.Name
	case d.Sticky:
		return fmt.Sprintf("%d, %s, sticky", d.Boxes, d.Name)
	}
	return fmt.Sprintf("%d, %s, random", d.Boxes, d.Name)
}

// team is a day under way.
type team struct {
	Day
	clock  *virtual.Clock
	boxes  []*box
	remote *remote // nil without
	any    *rand.Rand
}

// to is the server of a request.
func (t *team) to(r trace.Request) *box {
	if t.Sticky {
		return t.boxes[conversation(r)%uint64(len(t.boxes))]
	}
	return t.boxes[t.any.IntN(len(t.boxes))]
}

func (t *team) close() (err error) {
	for _, b := range t.boxes {
		err = errors.Join(err, b.store.Close())
	}
	return err
}

// Alone is a day of servers with 8B parameters on GPUs of 1,000 tokens a second, and the default budget on an SSD.
var Alone = Day{
	Model: Model{TokenBytes: 128 << 10, Token: 0.001, Doubles: 30_000},
	Name:  "alone", Disk: Link{BytesPerSecond: 3e9, RoundTrip: 100e-6}, LocalBytes: 20e9,
}

// Days are the days of a report.
func Days() (days []Day) {
	engine := Alone
	engine.Name, engine.Link = "engine", Link{BytesPerSecond: 1.25e9, RoundTrip: 0.5e-3}
	engine.EngineBytes, engine.ThroughBytes = 200e9, tierenv.DefaultShareBytes
	nfs := engine
	nfs.Name, nfs.Files, nfs.ThroughBytes = "NFS (simulated)", true, 0
	for _, day := range []Day{Alone, engine, nfs} {
		for _, day.Boxes = range []int{1, 3, 8} {
			if day.Sticky = true; day.Boxes > 1 {
				days = append(days, day)
			}
			day.Sticky = false
			days = append(days, day)
		}
	}
	engine.Boxes = 8
	unlimited, slow := engine, engine
	unlimited.Name, unlimited.EngineBytes, unlimited.ThroughBytes = "engine, no limits", 1e15, 1e15
	slow.Name, slow.BytesPerSecond = "engine, 1 Gbit/s", 0.125e9
	return append(days, unlimited, slow)
}

func tokens(requests []trace.Request) (n int) {
	for _, r := range requests {
		n += r.Tokens
	}
	return n
}

// best is the share of tokens that a memory without end gives back.
func best(requests []trace.Request) float64 {
	seen, given := make(map[int32]bool), 0
	for _, r := range requests {
		for _, block := range r.Known() {
			if !seen[block] {
				break
			}
			given++
		}
		for _, block := range r.Whole() {
			seen[block] = true
		}
	}
	return float64(given*trace.BlockTokens) / float64(tokens(requests))
}
