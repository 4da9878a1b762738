package paging

import (
	"sync"

	"github.com/kvtier/kvtier/ggml-paged/pager"
	"github.com/kvtier/kvtier/telemetry"
)

// pagers are those that this process has opened. A runner opens one for each attempt to place a
// model's layers, and keeps the last.
type pagers struct {
	attach sync.Once

	mu     sync.Mutex
	open   []*pager.Pager
	closed pager.Stats // sums over pagers that were closed
}

var ours pagers

// add has a pager's counts in the reports of this process.
func (s *pagers) add(p *pager.Pager) {
	s.mu.Lock()
	s.foldLocked()
	s.open = append(s.open, p)
	s.mu.Unlock()
	s.attach.Do(func() { telemetry.Attach(s.fill) })
}

// foldLocked adds up the pagers that were closed, and forgets them.
func (s *pagers) foldLocked() {
	left := s.open[:0]
	for _, p := range s.open {
		if p.Closed() {
			s.closed = plus(s.closed, p.Stats())
		} else {
			left = append(left, p)
		}
	}
	clear(s.open[len(left):])
	s.open = left
}

// stats are the sums over all pagers.
func (s *pagers) stats() pager.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foldLocked()
	sum := s.closed
	for _, p := range s.open {
		sum = plus(sum, p.Stats())
	}
	return sum
}

func plus(a, b pager.Stats) pager.Stats {
	a.Frames, a.FramesUsed, a.ArenaBytes = a.Frames+b.Frames, a.FramesUsed+b.FramesUsed, a.ArenaBytes+b.ArenaBytes
	a.Hits, a.Misses, a.ReadBytes, a.Waited = a.Hits+b.Hits, a.Misses+b.Misses, a.ReadBytes+b.ReadBytes, a.Waited+b.Waited
	return a
}

// fill adds the pagers to a report. Of the arena the frames with pages count as held: the pager
// returns the memory of others to the system.
func (s *pagers) fill(r *telemetry.Report) {
	sum := s.stats()
	r.Totals["ollama_kv_paged_streamed_bytes_total"] = float64(sum.ReadBytes)
	r.Totals["ollama_kv_paged_hits_total"] = float64(sum.Hits)
	r.Totals["ollama_kv_paged_misses_total"] = float64(sum.Misses)
	r.Totals["ollama_kv_paged_stall_seconds_total"] = sum.Waited.Seconds()
	if sum.Frames > 0 {
		r.Memory = append(r.Memory, telemetry.Memory{
			Name: "paged arena", Bytes: int64(sum.FramesUsed * (sum.ArenaBytes / sum.Frames)), Limit: int64(sum.ArenaBytes),
		})
	}
}
