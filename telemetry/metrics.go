package telemetry

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is the kind of a metric, as Prometheus has them.
type Kind string

// Kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Metric is a family of series.
type Metric struct {
	Name   string
	Kind   Kind
	Help   string
	Labels []string  // besides those that package expose adds: model, and for gauges of a process also its number
	Bounds []float64 // of a histogram's buckets, ascending
}

// Places, as values of the labels tier, from, to and source.
const (
	PlaceSlot    = "slot" // the engine's own cache: on the accelerator, or in memory
	PlaceRAM     = "ram"
	PlaceLocal   = "local"
	PlaceRemote  = "remote"
	PlaceNone    = "none"     // of pages that are gone
	PlaceShifted = "shifted"  // of tokens that were reused at another position
	PlaceCompute = "computed" // of tokens
)

var (
	secondsBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100}
	tokensBounds  = []float64{256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144}
)

// Metrics lists every metric that a process may report.
var Metrics = []Metric{
	{"ollama_kv_prompts_total", Counter, "Prompts that were evaluated.", nil, nil},
	{"ollama_kv_prompt_tokens_total", Counter, "Tokens of prompts, by the place that their K/V came from.", []string{"source"}, nil},
	{"ollama_kv_restores_total", Counter, "Prompts of which tokens were restored.", nil, nil},
	{"ollama_kv_lossy_tokens_total", Counter, "Restored tokens of prompts from the first lossy page on.", nil, nil},
	{"ollama_kv_restored_bytes_total", Counter, "Bytes of K/V that restores read.", nil, nil},
	{"ollama_kv_saved_seconds_total", Counter, "Estimate: the time that computing prompts without their restored tokens would have taken, as far as it was measured, less the time that they took.", nil, nil},
	{"ollama_kv_misses_total", Counter, "Prompts of which more than the last token was computed, by cause.", []string{"cause"}, nil},
	{"ollama_kv_missed_tokens_total", Counter, "Tokens that these prompts computed, by cause.", []string{"cause"}, nil},
	{"ollama_kv_restore_seconds", Histogram, "Time from the look-up to the last row of a restore.", nil, secondsBounds},
	{"ollama_kv_prompt_seconds", Histogram, "Time from the look-up to the last batch of a prompt.", nil, secondsBounds},
	{"ollama_kv_restored_tokens", Histogram, "Tokens of a restore.", nil, tokensBounds},

	{"ollama_kv_page_moves_total", Counter, "Pages and tails that were copied or moved, by source and destination: slot to local is a seal, local to slot a restore, local to remote a demotion, remote to local a promotion, and anything to none an eviction.", []string{"from", "to"}, nil},
	{"ollama_kv_page_faults_total", Counter, "Pages that a restore needed and that were not in memory, by the tier that they were read from.", []string{"tier"}, nil},
	{"ollama_kv_prefetched_pages_total", Counter, "Pages that were read into memory before a request.", nil, nil},
	{"ollama_kv_prefetched_bytes_total", Counter, "Bytes of these pages.", nil, nil},
	{"ollama_kv_prefetched_used_pages_total", Counter, "Of these pages, those that a restore read from memory.", nil, nil},
	{"ollama_kv_gate_pages_total", Counter, "Pages that were found, by decision: read, or compute where that was quicker.", []string{"decision"}, nil},
	{"ollama_kv_restores_given_up_total", Counter, "Restores that ended early because computing the rest became quicker.", nil, nil},

	{"ollama_kv_sealed_pages_total", Counter, "Pages, tails and states that were stored.", []string{"kind"}, nil},
	{"ollama_kv_dropped_pages_total", Counter, "Pages, tails and states that could not be stored.", nil, nil},
	{"ollama_kv_not_stored_total", Counter, "Times that a page, a slot or a model should have been stored and was not, by cause.", []string{"cause"}, nil},
	{"ollama_kv_failed_copies_total", Counter, "Pages that could not be copied out of the cache.", nil, nil},
	{"ollama_kv_queue_pages", Gauge, "Pages that wait to be stored.", nil, nil},
	{"ollama_kv_queue_bytes", Gauge, "Bytes of these pages.", nil, nil},
	{"ollama_kv_queue_limit_bytes", Gauge, "The most bytes that may wait.", nil, nil},
	{"ollama_kv_encoded_raw_bytes_total", Counter, "Bytes of K/V before they were encoded for a page.", nil, nil},
	{"ollama_kv_encoded_bytes_total", Counter, "Bytes of page files after encoding.", nil, nil},

	{"ollama_kv_store_errors_total", Counter, "Operations that failed, by operation: put, or tier for anything on a tier.", []string{"operation"}, nil},
	{"ollama_kv_damaged_pages_total", Counter, "Files that failed their check.", nil, nil},
	{"ollama_kv_shared_pages_total", Counter, "Pages that were copied to the remote tier soon after they were stored.", nil, nil},
	{"ollama_kv_shared_bytes_total", Counter, "Bytes of these pages.", nil, nil},
	{"ollama_kv_share_errors_total", Counter, "Attempts to copy such a page that failed.", nil, nil},
	{"ollama_kv_returned_pages_total", Counter, "Pages stored again that were among the last 16,384 to leave the local tier for want of room, by the room that would have kept them: 2x and 4x of the tier's, or more.", []string{"room"}, nil},
	{"ollama_kv_write_capped_pages_total", Counter, "Pages that were not stored because of the limit of a day.", nil, nil},

	{"ollama_kv_tier_pages", Gauge, "Full pages in a tier.", []string{"tier"}, nil},
	{"ollama_kv_tier_tails", Gauge, "Incomplete last pages in a tier.", []string{"tier"}, nil},
	{"ollama_kv_tier_bytes", Gauge, "Bytes of both.", []string{"tier"}, nil},
	{"ollama_kv_tier_booked_bytes", Gauge, "Bytes that count against the budget.", []string{"tier"}, nil},
	{"ollama_kv_tier_budget_bytes", Gauge, "The budget; 0 for all but 5 % of the disk.", []string{"tier"}, nil},
	{"ollama_kv_tier_written_today_bytes", Gauge, "Bytes written on this day (UTC), by all processes.", []string{"tier"}, nil},
	{"ollama_kv_tier_write_cap_bytes", Gauge, "The most bytes that may be written in a day; 0 for no limit.", []string{"tier"}, nil},
	{"ollama_kv_tier_up", Gauge, "1, or 0 while writing fails or the tier is left alone after failures.", []string{"tier"}, nil},

	{"ollama_kv_memory_bytes", Gauge, "Memory that tiering and paging hold, by purpose.", []string{"purpose"}, nil},
	{"ollama_kv_elastic_bytes", Gauge, "Elastic memory: K/V in use, memory that is kept for reuse, and what is available to K/V under the limit.", []string{"segment", "state"}, nil},
	{"ollama_kv_paged_streamed_bytes_total", Counter, "Paged attention: bytes of pages that were read back from the spill or from page files.", nil, nil},
	{"ollama_kv_paged_hits_total", Counter, "Paged attention: pages that were in memory when attention needed them.", nil, nil},
	{"ollama_kv_paged_misses_total", Counter, "Paged attention: pages that had to be read.", nil, nil},
	{"ollama_kv_paged_stall_seconds_total", Counter, "Paged attention: time for which attention waited for pages.", nil, nil},
	{"ollama_kv_paged_prefetches_total", Counter, "Paged attention: pages that were read before attention needed them.", nil, nil},
	{"ollama_kv_paged_prefetch_hits_total", Counter, "Paged attention: of these pages, those that attention found in memory.", nil, nil},
	{"ollama_kv_paged_evictions_total", Counter, "Paged attention: pages that left memory for others.", nil, nil},
	{"ollama_kv_paged_seen_blocks_total", Counter, "Paged attention with OLLAMA_PAGED_SELECT: blocks of a layer among which new tokens chose.", nil, nil},
	{"ollama_kv_paged_chosen_blocks_total", Counter, "Paged attention with OLLAMA_PAGED_SELECT: of these blocks, those that they chose.", nil, nil},
	{"ollama_kv_paged_spilled_bytes_total", Counter, "Paged attention: bytes of pages that were written to the spill.", nil, nil},
	{"ollama_kv_paged_memory_pages", Gauge, "Paged attention: pages of a layer in memory.", nil, nil},
	{"ollama_kv_paged_spill_bytes", Gauge, "Paged attention: disk space that the spill has taken.", nil, nil},
	{"ollama_kv_paged_video_pages", Gauge, "Paged attention: pages of a layer that stay in video memory.", nil, nil},
	{"ollama_kv_paged_video_hits_total", Counter, "Paged attention: pages that attention found in video memory.", nil, nil},
	{"ollama_kv_paged_video_fills_total", Counter, "Paged attention: pages that were put into video memory to stay.", nil, nil},
	{"ollama_kv_paged_video_evictions_total", Counter, "Paged attention: pages that left video memory for others.", nil, nil},
}

// Find returns the metric of a name.
func Find(name string) (Metric, bool) {
	i := slices.IndexFunc(Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return Metrics[i], true
}

// Series is the key of one series in Totals or Gauges: the metric's name, and its labels in alphabetical
// order as Prometheus writes them. Series panics unless pairs are names and values of labels.
func Series(name string, pairs ...string) string {
	if len(pairs)%2 != 0 {
		panic("telemetry: a label has no value")
	}
	if len(pairs) == 0 {
		return name
	}
	labels := make([]string, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		labels = append(labels, fmt.Sprintf(`%s="%s"`, pairs[i], labelEscapes.Replace(pairs[i+1])))
	}
	slices.Sort(labels)
	return name + "{" + strings.Join(labels, ",") + "}"
}

// labelEscapes are those of Prometheus's text format.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
