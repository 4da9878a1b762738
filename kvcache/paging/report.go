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
	off    *telemetry.Unpaged

	devices func() (pager.DeviceStats, bool)
}

var ours pagers

// Off has the reports of this process say that its model is not paged.
func Off(reason, remedy string) {
	ours.mu.Lock()
	ours.off = &telemetry.Unpaged{Reason: reason, Remedy: remedy}
	ours.mu.Unlock()
	ours.attach.Do(ours.report)
}

// Devices has the reports of this process count pages that stay in video memory. count may be called
// at any time; it returns false where no device has such pages.
func Devices(count func() (pager.DeviceStats, bool)) {
	ours.mu.Lock()
	defer ours.mu.Unlock()
	ours.devices = count
}

func (s *pagers) report() { telemetry.Attach(s.fill) }

// add has a pager's counts in the reports of this process.
func (s *pagers) add(p *pager.Pager) {
	s.mu.Lock()
	s.foldLocked()
	s.open = append(s.open, p)
	s.mu.Unlock()
	s.attach.Do(s.report)
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
	a.SpillBytes, a.WriteBytes, a.Evictions = a.SpillBytes+b.SpillBytes, a.WriteBytes+b.WriteBytes, a.Evictions+b.Evictions
	a.Hits, a.Misses, a.ReadBytes, a.Waited = a.Hits+b.Hits, a.Misses+b.Misses, a.ReadBytes+b.ReadBytes, a.Waited+b.Waited
	a.Prefetches, a.PrefetchHits = a.Prefetches+b.Prefetches, a.PrefetchHits+b.PrefetchHits
	a.SeenBlocks, a.ChosenBlocks, a.BoundsBytes = a.SeenBlocks+b.SeenBlocks, a.ChosenBlocks+b.ChosenBlocks, a.BoundsBytes+b.BoundsBytes
	return a
}

// fill adds the pagers to a report. Of the arena the frames with pages count as held: the pager
// returns the memory of others to the system.
func (s *pagers) fill(r *telemetry.Report) {
	s.mu.Lock()
	r.Unpaged = s.off
	devices := s.devices
	s.mu.Unlock()
	sum := s.stats()
	r.Totals["ollama_kv_paged_streamed_bytes_total"] = float64(sum.ReadBytes)
	r.Totals["ollama_kv_paged_hits_total"] = float64(sum.Hits)
	r.Totals["ollama_kv_paged_misses_total"] = float64(sum.Misses)
	r.Totals["ollama_kv_paged_stall_seconds_total"] = sum.Waited.Seconds()
	r.Totals["ollama_kv_paged_prefetches_total"] = float64(sum.Prefetches)
	r.Totals["ollama_kv_paged_prefetch_hits_total"] = float64(sum.PrefetchHits)
	r.Totals["ollama_kv_paged_evictions_total"] = float64(sum.Evictions)
	r.Totals["ollama_kv_paged_spilled_bytes_total"] = float64(sum.WriteBytes)
	r.Totals["ollama_kv_paged_seen_blocks_total"] = float64(sum.SeenBlocks)
	r.Totals["ollama_kv_paged_chosen_blocks_total"] = float64(sum.ChosenBlocks)
	if sum.BoundsBytes > 0 {
		r.Memory = append(r.Memory, telemetry.Memory{Name: "paged bounds", Bytes: int64(sum.BoundsBytes)})
	}
	if sum.Frames > 0 {
		r.Gauges["ollama_kv_paged_memory_pages"] = float64(sum.FramesUsed)
		r.Gauges["ollama_kv_paged_spill_bytes"] = float64(sum.SpillBytes)
		r.Memory = append(r.Memory, telemetry.Memory{
			Name: "paged arena", Bytes: int64(sum.FramesUsed * (sum.ArenaBytes / sum.Frames)), Limit: int64(sum.ArenaBytes),
		})
	}
	if devices == nil {
		return
	}
	if of, ok := devices(); ok {
		r.Totals["ollama_kv_paged_video_hits_total"] = float64(of.Hits)
		r.Totals["ollama_kv_paged_video_fills_total"] = float64(of.Fills)
		r.Totals["ollama_kv_paged_video_evictions_total"] = float64(of.Evictions)
		r.Gauges["ollama_kv_paged_video_pages"] = float64(of.Pages)
		r.Memory = append(r.Memory, telemetry.Memory{Name: "paged video memory", Bytes: int64(of.Bytes)})
	}
}
