package promtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
)

// tokensOfAPrompt is the size of every prompt of the workload.
const tokensOfAPrompt = 1000

// workload is a server whose state has moved on at each scrape, and which has every metric.
type workload struct {
	mu    sync.Mutex
	meter telemetry.Meter
	steps int
	// scraped gets a value at each scrape, if there is room.
	scraped chan struct{}
}

func newWorkload() *workload { return &workload{scraped: make(chan struct{}, 1)} }

// values of labels of counters that are no part of a prompt.
var labelled = map[string][]string{
	"ollama_kv_page_moves_total":     {"from", "slot", "to", "local", "from", "local", "to", "none"},
	"ollama_kv_page_faults_total":    {"tier", "local"},
	"ollama_kv_gate_pages_total":     {"decision", "read", "decision", "compute"},
	"ollama_kv_sealed_pages_total":   {"kind", "page", "kind", "tail", "kind", "state"},
	"ollama_kv_store_errors_total":   {"operation", "put", "operation", "tier"},
	"ollama_kv_not_stored_total":     {"cause", "disk_full"},
	"ollama_kv_returned_pages_total": {"room", "2x", "room", "4x", "room", "more"},
}

// ofPrompts are the counters without labels that a prompt moves.
var ofPrompts = []string{"ollama_kv_prompts_total", "ollama_kv_restores_total", "ollama_kv_saved_seconds_total"}

// stepLocked makes the events between two scrapes.
func (w *workload) stepLocked() {
	w.steps++
	for i, e := range telemetry.Causes {
		p := telemetry.Prompt{
			Tokens: tokensOfAPrompt, Slot: 100, RAM: 100, Local: 300, Remote: 100, Shifted: 100, Computed: 300,
			Restore: time.Duration(1+i) * 10 * time.Millisecond, Took: time.Duration(1+i) * 200 * time.Millisecond, Saved: time.Second,
			Miss: &telemetry.Miss{Cause: e.Cause},
		}
		w.meter.Prompt(p)
	}
	for _, m := range telemetry.Metrics {
		pairs := labelled[m.Name]
		switch {
		case slices.Contains(ofPrompts, m.Name) || m.Kind != telemetry.Counter || (len(m.Labels) > 0 && pairs == nil):
		case len(m.Labels) == 0:
			w.meter.Add(m.Name, 3)
		default:
			for size := 2 * len(m.Labels); len(pairs) > 0; pairs = pairs[size:] {
				w.meter.Add(telemetry.Series(m.Name, pairs[:size]...), 2)
			}
		}
	}
}

func (w *workload) read(context.Context) (telemetry.State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stepLocked()
	select {
	case w.scraped <- struct{}{}:
	default:
	}
	totals, _ := w.meter.Read()
	now := time.Now()
	model := telemetry.Model{Weights: "ab12", Name: "qwen3:8b", Namespace: "team", PageTokens: 256, TokenBytes: 1000, CacheType: "f16", Architecture: "qwen3"}
	return telemetry.State{
		Version: telemetry.Version, Root: "/pages", At: now, Since: now.Add(-time.Hour), Live: true,
		Models: []telemetry.ModelState{{Model: model, Engine: telemetry.EngineOllama, Totals: totals, LastUsed: now}},
		Processes: []telemetry.ProcessState{{
			Process: telemetry.Process{PID: 7, Engine: telemetry.EngineOllama}, Model: model, Started: now, At: now,
			Gauges: map[string]float64{
				"ollama_kv_queue_pages": 3, "ollama_kv_queue_bytes": 95, "ollama_kv_queue_limit_bytes": 100,
				"ollama_kv_paged_memory_pages": 40, "ollama_kv_paged_spill_bytes": 9e6, "ollama_kv_paged_video_pages": 12,
			},
			Slots:   []telemetry.Slot{{Tokens: 512, Bytes: 512_000, Hot: 2, Warm: 1, Cold: 2, Remote: 1, Busy: true}},
			Memory:  []telemetry.Memory{{Name: "write queue", Bytes: 95}, {Name: "paged arena", Bytes: 1000}},
			Elastic: []telemetry.Elastic{{Segment: "kvcached_7_cpu", Used: 500, Kept: 100, Limit: 2000}},
		}},
		Tiers: []telemetry.Tier{
			{Name: "ram", Pages: 5, Bytes: 50, Booked: 50, Budget: 100},
			{Name: "local", Root: "/pages", Pages: 10, Tails: 2, Bytes: 12345, Booked: 30e9, Budget: 20e9, WrittenToday: 49e8, WriteCap: 5e9},
			{Name: "remote", Root: "/nfs", Pages: 4, Bytes: 400, Down: true},
		},
	}, nil
}

// disks are the counts of kvtier stat beside it, more at each look.
func (w *workload) disks() []expose.Disk {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []expose.Disk{{Tier: "local", Root: "/pages", Pages: 10, QuarantinedFiles: w.steps, QuarantinedBytes: 10, TemporaryFiles: 1, TemporaryBytes: 1, Bytes: 100, FreeBytes: 50}}
}
