package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/share"
)

const (
	shareSlots   = 8
	shareBudget  = 32768 // tokens
	shareBursts  = 40    // 20 minutes of load
	quickBursts  = 2
	sharePrefill = 1000 // that of the benchmark cost, in docs/benchmarks.md
	shareLoad    = 0.5

	// shareDecode is the speed of a model of 8B parameters on one card, in tokens per second. That of the
	// benchmark cost would be ten times as high: answers then hold memory for a moment.
	shareDecode      = 50
	shareAnswerLeast = 50
	shareAnswerMost  = 300
)

// shareSizes are prompts that a part of the budget holds with ease, holds, and does not hold.
var shareSizes = []struct{ small, large int }{{256, 2048}, {1024, 8192}, {1024, 24576}}

// Share compares limits that are moved with a static split.
type Share struct {
	Config share.Config `json:"config"` // without the servers, of which each mix has its own number
	Mixes  []ShareMix   `json:"mixes"`
}

// ShareMix is one mix of load.
type ShareMix struct {
	Servers int     `json:"servers"`
	Hot     float64 `json:"hot"` // share of a burst that one server gets
	Small   int     `json:"prompt_least"`
	Large   int     `json:"prompt_most"`

	Requests int       `json:"requests"`
	Split    ShareSide `json:"split"`
	Balance  ShareSide `json:"balance"`

	// Throughput is requests completed in a time, balance over split, for each repetition.
	Throughput measure.Series `json:"throughput_ratio"`
}

// ShareSide is one side, with times of all repetitions in seconds. Only requests count that every side
// completed.
type ShareSide struct {
	Completed int            `json:"completed"`
	Failed    int            `json:"failed"`
	Latency   ShareQuantiles `json:"latency"`
	First     ShareQuantiles `json:"time_to_first_token"`
	Most      float64        `json:"most_held"` // of the budget
	GaveWay   int            `json:"gave_way"`  // times that an answer lost its older half
	Over      int            `json:"blocks_over_limit"`
	Moves     int            `json:"limits_set"`

	latencies, firsts []float64
}

// ShareQuantiles are of times in seconds.
type ShareQuantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

func quantilesOf(values []float64) ShareQuantiles {
	return ShareQuantiles{quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99)}
}

// measureShare runs all mixes.
func (b *bench) measureShare(ctx context.Context) error {
	r := &Share{Config: share.Config{
		Slots: shareSlots, Budget: shareBudget, Prefill: b.settings.sharePrefill, Decode: shareDecode, Bursts: shareBursts,
		Load: b.settings.shareLoad, AnswerLeast: shareAnswerLeast, AnswerMost: shareAnswerMost, Patience: share.Patience,
	}}
	if b.settings.quick {
		r.Config.Bursts = quickBursts
	}
	step := b.steps.Step(fmt.Sprintf("share, %d times", b.settings.repetitions))
	for _, servers := range []int{2, 3} {
		for _, size := range shareSizes {
			for _, hot := range []float64{0.5, 0.7, 0.9, 1} {
				c := r.Config
				c.Servers = servers
				m := ShareMix{Servers: servers, Hot: hot, Small: size.small, Large: size.large}
				err := m.measure(ctx, c, b.settings.repetitions)
				if errors.Is(err, elastic.ErrUnsupported) {
					step.End("left out: it needs Linux and cgo", nil)
					return nil
				}
				if err != nil {
					step.End("", err)
					return err
				}
				r.Mixes = append(r.Mixes, m)
			}
		}
	}
	b.report.Share = r
	step.End(fmt.Sprintf("%d mixes", len(r.Mixes)), nil)
	return nil
}

// measure plays the requests of several seeds to all sides. In virtual time the order of sides means nothing.
func (m *ShareMix) measure(ctx context.Context, c share.Config, seeds int) error {
	for seed := range uint64(seeds) {
		requests := share.Requests(c, share.Mix{Hot: m.Hot, Small: m.Small, Large: m.Large}, seed)
		split, err := share.Split(ctx, c, requests)
		if err != nil {
			return err
		}
		moved, err := share.Moved(ctx, c, requests, share.Balance)
		if err != nil {
			return err
		}
		m.add(c, requests, split, moved)
	}
	return nil
}

// add adds a repetition.
func (m *ShareMix) add(c share.Config, requests []share.Request, split, moved share.Side) {
	m.Requests += len(requests)
	each := []struct {
		to *ShareSide
		of share.Side
	}{{&m.Split, split}, {&m.Balance, moved}}
	for i, q := range requests {
		if split.Outcomes[i].Failed || moved.Outcomes[i].Failed {
			continue
		}
		for _, side := range each {
			side.to.latencies = append(side.to.latencies, (side.of.Outcomes[i].Done - q.At).Seconds())
			side.to.firsts = append(side.to.firsts, (side.of.Outcomes[i].First - q.At).Seconds())
		}
	}
	for _, side := range each {
		side.to.add(c, side.of)
	}
	perSecond := func(s share.Side) float64 { return float64(s.Completed()) / max(s.End, time.Second).Seconds() }
	m.Throughput.Add(perSecond(moved) / perSecond(split))
}

func (s *ShareSide) add(c share.Config, of share.Side) {
	s.Completed += of.Completed()
	s.Failed += of.Failed()
	s.GaveWay += of.GaveWay
	s.Over += of.Over
	s.Moves += of.Moves
	s.Most = max(s.Most, float64(of.Most)/float64(c.Budget))
	s.Latency, s.First = quantilesOf(s.latencies), quantilesOf(s.firsts)
}
