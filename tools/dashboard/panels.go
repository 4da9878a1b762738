package main

// row is a group of panels under one title.
type row struct {
	title  string
	panels []panel
}

// kind is a way to draw a panel.
type kind int

const (
	lines   kind = iota // over time
	stacked             // over time, on top of each other
	number              // one number now, or over the time shown
	bars                // a bar for each series, now
	states              // a band for each series, over time
)

type panel struct {
	kind    kind
	title   string
	help    string
	unit    string
	width   uint32 // of 24 columns
	queries []query
}

type query struct {
	expr   string // with the selectors below
	legend string
}

// Selectors, which a query names in braces: series of models and processes, and of tiers. The
// dashboard's variables choose among both.
var selectors = map[string]string{
	"{M}":  `job=~"$job",instance=~"$instance",model=~"$model",namespace=~"$namespace"`,
	"{T}":  `job=~"$job",instance=~"$instance"`,
	"{R}":  "$__rate_interval",
	"{DT}": "$__range",
}

// Units, as Grafana names them.
const (
	share        = "percentunit"
	seconds      = "s"
	bytes        = "bytes"
	bytesPerSec  = "Bps"
	plain        = "short"
	perSecond    = "ops"
	tokensPerSec = "cps"
)

var rows = []row{
	{"At a glance", []panel{
		{number, "Reused tokens", "The share of all tokens of prompts that were not computed, in the time shown.", share, 4, []query{
			{`sum(increase(ollama_kv_prompt_tokens_total{{M},source!="computed"}[{DT}])) / sum(increase(ollama_kv_prompt_tokens_total{{M}}[{DT}]))`, ""},
		}},
		{number, "Time saved", "An estimate: the time that computing prompts without their restored tokens would have taken, as far as it was measured, less the time that they took.", seconds, 4, []query{
			{`sum(increase(ollama_kv_saved_seconds_total{{M}}[{DT}]))`, ""},
		}},
		{number, "Tokens restored", "Tokens that came back from a tier, in the time shown.", plain, 4, []query{
			{`sum(increase(ollama_kv_prompt_tokens_total{{M},source=~"ram|local|remote|shifted"}[{DT}]))`, ""},
		}},
		{number, "Tokens computed", "Tokens of prompts that were computed, in the time shown.", plain, 4, []query{
			{`sum(increase(ollama_kv_prompt_tokens_total{{M},source="computed"}[{DT}]))`, ""},
		}},
		{number, "Tiers down", "Tiers on which writing fails, or that are left alone after failures.", plain, 4, []query{
			{`count(ollama_kv_tier_up{{T}} == 0) or vector(0)`, ""},
		}},
		{number, "Damaged files", "Files that failed their check, since the totals began.", plain, 4, []query{
			{`sum(ollama_kv_damaged_pages_total{{M}}) or vector(0)`, ""},
		}},
	}},
	{"Prompts", []panel{
		{stacked, "Tokens of prompts by source", "slot: in the engine's own cache. ram, local, remote: restored. shifted: reused at another position. computed: none of these.", tokensPerSec, 12, []query{
			{`sum by (source) (rate(ollama_kv_prompt_tokens_total{{M}}[{R}]))`, "{{source}}"},
		}},
		{stacked, "Reused tokens by source", "The share of all tokens of prompts that each source gave.", share, 12, []query{
			{`sum by (source) (rate(ollama_kv_prompt_tokens_total{{M},source!="computed"}[{R}])) / ignoring (source) group_left sum(rate(ollama_kv_prompt_tokens_total{{M}}[{R}]))`, "{{source}}"},
		}},
		{lines, "Restore time", "From the look-up to the last row.", seconds, 8, quantiles("ollama_kv_restore_seconds")},
		{lines, "Prompt time", "From the look-up to the prompt's last batch.", seconds, 8, quantiles("ollama_kv_prompt_seconds")},
		{lines, "Tokens of a restore", "", plain, 8, quantiles("ollama_kv_restored_tokens")},
		{lines, "Time saved, by model", "Seconds saved in each second: an estimate.", plain, 8, []query{
			{`sum by (model) (rate(ollama_kv_saved_seconds_total{{M}}[{R}]))`, "{{model}}"},
		}},
		{lines, "Lossy tokens", "Restored tokens from the first lossy page on: their share of all tokens of prompts.", share, 8, []query{
			{`sum(rate(ollama_kv_lossy_tokens_total{{M}}[{R}])) / sum(rate(ollama_kv_prompt_tokens_total{{M}}[{R}]))`, "lossy"},
		}},
		{lines, "Prompts and restores", "", perSecond, 8, []query{
			{`sum(rate(ollama_kv_prompts_total{{M}}[{R}]))`, "prompts"},
			{`sum(rate(ollama_kv_restores_total{{M}}[{R}]))`, "restores"},
			{`sum(rate(ollama_kv_restores_given_up_total{{M}}[{R}]))`, "given up: computing became quicker"},
		}},
	}},
	{"Why prompts were computed", []panel{
		{stacked, "Prompts by cause", "kvtier why shows each of them.", perSecond, 12, []query{
			{`sum by (cause) (rate(ollama_kv_misses_total{{M}}[{R}]))`, "{{cause}}"},
		}},
		{stacked, "Tokens by cause", "Tokens that these prompts computed.", tokensPerSec, 12, []query{
			{`sum by (cause) (rate(ollama_kv_missed_tokens_total{{M}}[{R}]))`, "{{cause}}"},
		}},
	}},
	{"Tiers", []panel{
		{bars, "Used of the budget", "A budget of 0, which is all but 5 % of the disk, has no bar.", share, 8, []query{
			{`max by (tier, root) (ollama_kv_tier_booked_bytes{{T}}) / (max by (tier, root) (ollama_kv_tier_budget_bytes{{T}}) > 0)`, "{{tier}} {{root}}"},
		}},
		{lines, "Pages by tier", "Full pages; those in the slots are on the accelerator, or in the engine's memory.", plain, 8, []query{
			{`max by (tier, root) (ollama_kv_tier_pages{{T}})`, "{{tier}} {{root}}"},
			{`sum(ollama_kv_slot_pages{{M},tier="slot"})`, "slots"},
		}},
		{lines, "Bytes by tier", "", bytes, 8, []query{
			{`max by (tier, root) (ollama_kv_tier_bytes{{T}})`, "{{tier}} {{root}}"},
			{`max by (tier, root) (ollama_kv_tier_budget_bytes{{T}} > 0)`, "{{tier}} {{root}}: budget"},
			{`sum(ollama_kv_slot_bytes{{M}})`, "slots"},
		}},
		{stacked, "Moves of pages", "slot to local is a seal, local to slot a restore, local to remote a demotion, remote to local a promotion, anything to none an eviction.", perSecond, 12, []query{
			{`sum by (from, to) (rate(ollama_kv_page_moves_total{{M}}[{R}]))`, "{{from}} to {{to}}"},
		}},
		{lines, "Page faults", "Pages that a restore needed and that were not in memory, by the tier that they were read from.", perSecond, 12, []query{
			{`sum by (tier) (rate(ollama_kv_page_faults_total{{M}}[{R}]))`, "{{tier}}"},
		}},
		{lines, "Prefetch usefulness", "Of the pages that were read into memory before a request, those that a restore then read from memory.", share, 8, []query{
			{`sum(increase(ollama_kv_prefetched_used_pages_total{{M}}[{DT}])) / sum(increase(ollama_kv_prefetched_pages_total{{M}}[{DT}]))`, "used"},
		}},
		{lines, "Prefetched", "", bytesPerSec, 8, []query{
			{`sum(rate(ollama_kv_prefetched_bytes_total{{M}}[{R}]))`, "prefetched"},
			{`sum(rate(ollama_kv_restored_bytes_total{{M}}[{R}]))`, "read by restores"},
		}},
		{stacked, "Decisions on pages that were found", "compute: reading the page would have been slower.", perSecond, 8, []query{
			{`sum by (decision) (rate(ollama_kv_gate_pages_total{{M}}[{R}]))`, "{{decision}}"},
		}},
	}},
	{"Writing", []panel{
		{lines, "Queue", "Bytes that wait to be stored, and the most that may.", bytes, 8, []query{
			{`sum by (instance, model) (ollama_kv_queue_bytes{{M}})`, "{{model}} {{instance}}"},
			{`sum by (instance, model) (ollama_kv_queue_limit_bytes{{M}})`, "{{model}} {{instance}}: limit"},
		}},
		{lines, "Pages that wait", "", plain, 8, []query{
			{`sum by (instance, model) (ollama_kv_queue_pages{{M}})`, "{{model}} {{instance}}"},
		}},
		{lines, "Stored and lost", "", perSecond, 8, []query{
			{`sum by (kind) (rate(ollama_kv_sealed_pages_total{{M}}[{R}]))`, "stored: {{kind}}"},
			{`sum(rate(ollama_kv_dropped_pages_total{{M}}[{R}]))`, "not stored"},
			{`sum(rate(ollama_kv_failed_copies_total{{M}}[{R}]))`, "not copied"},
			{`sum(rate(ollama_kv_write_capped_pages_total{{M}}[{R}]))`, "past the limit of a day"},
		}},
		{lines, "Why nothing is stored", "By cause: docs/operations.md has the remedies.", perSecond, 24, []query{
			{`sum by (cause) (rate(ollama_kv_not_stored_total{{M}}[{R}]))`, "{{cause}}"},
		}},
		{bars, "Written today of the limit", "Tiers that have a limit of a day.", share, 8, []query{
			{`max by (tier, root) (ollama_kv_tier_written_today_bytes{{T}}) / (max by (tier, root) (ollama_kv_tier_write_cap_bytes{{T}}) > 0)`, "{{tier}} {{root}}"},
		}},
		{lines, "Written today", "Since midnight UTC, by all processes.", bytes, 8, []query{
			{`max by (tier, root) (ollama_kv_tier_written_today_bytes{{T}})`, "{{tier}} {{root}}"},
			{`max by (tier, root) (ollama_kv_tier_write_cap_bytes{{T}} > 0)`, "{{tier}} {{root}}: limit"},
		}},
		{lines, "Size of page files", "Bytes after encoding, of bytes before.", share, 8, []query{
			{`sum(rate(ollama_kv_encoded_bytes_total{{M}}[{R}])) / sum(rate(ollama_kv_encoded_raw_bytes_total{{M}}[{R}]))`, "encoded"},
		}},
	}},
	{"Health", []panel{
		{states, "Tiers up", "0 while writing fails, or while a tier is left alone after failures: the breaker is open.", plain, 12, []query{
			{`min by (tier, root) (ollama_kv_tier_up{{T}})`, "{{tier}} {{root}}"},
		}},
		{lines, "Damaged files and errors", "", plain, 12, []query{
			{`sum(increase(ollama_kv_damaged_pages_total{{M}}[{R}]))`, "damaged"},
			{`sum by (operation) (increase(ollama_kv_store_errors_total{{M}}[{R}]))`, "errors: {{operation}}"},
			{`max by (tier, root) (ollama_kv_tier_quarantined_files{{T}})`, "set aside: {{tier}} {{root}}"},
		}},
	}},
	{"Memory and paged attention", []panel{
		{stacked, "Memory", "Memory that tiering and paging hold, by purpose.", bytes, 8, []query{
			{`sum by (purpose) (ollama_kv_memory_bytes{{M}})`, "{{purpose}}"},
		}},
		{stacked, "Slots", "", plain, 8, []query{
			{`sum by (state) (ollama_kv_slots{{M}})`, "{{state}}"},
		}},
		{lines, "Paged attention: pages in memory", "Of the pages that attention needed, those that were in memory.", share, 8, []query{
			{`sum(rate(ollama_kv_paged_hits_total{{M}}[{R}])) / (sum(rate(ollama_kv_paged_hits_total{{M}}[{R}])) + sum(rate(ollama_kv_paged_misses_total{{M}}[{R}])))`, "in memory"},
		}},
		{lines, "Paged attention: read and written", "Bytes of pages read back, and bytes written to the spill.", bytesPerSec, 12, []query{
			{`sum(rate(ollama_kv_paged_streamed_bytes_total{{M}}[{R}]))`, "read back"},
			{`sum(rate(ollama_kv_paged_spilled_bytes_total{{M}}[{R}]))`, "written"},
		}},
		{lines, "Paged attention: waiting", "Seconds for which attention waited for pages, in each second.", plain, 12, []query{
			{`sum(rate(ollama_kv_paged_stall_seconds_total{{M}}[{R}]))`, "waiting"},
		}},
		{stacked, "Paged attention: pages", "Pages of a layer in memory, and those with a copy in video memory.", plain, 8, []query{
			{`sum(ollama_kv_paged_memory_pages{{M}})`, "in memory"},
			{`sum(ollama_kv_paged_video_pages{{M}})`, "in video memory"},
		}},
		{lines, "Paged attention: spill", "Disk space that the spill has taken.", bytes, 8, []query{
			{`sum(ollama_kv_paged_spill_bytes{{M}})`, "spill"},
		}},
		{lines, "Paged attention: used of the pages read ahead", "Of the pages that were read before attention needed them, those that it used.", share, 8, []query{
			{`sum(rate(ollama_kv_paged_prefetch_hits_total{{M}}[{R}])) / sum(rate(ollama_kv_paged_prefetches_total{{M}}[{R}]))`, "used"},
		}},
		{lines, "Paged attention: pages that move", "Out of memory, and in video memory.", perSecond, 24, []query{
			{`sum(rate(ollama_kv_paged_evictions_total{{M}}[{R}]))`, "left memory"},
			{`sum(rate(ollama_kv_paged_video_hits_total{{M}}[{R}]))`, "found in video memory"},
			{`sum(rate(ollama_kv_paged_video_fills_total{{M}}[{R}]))`, "came to video memory"},
			{`sum(rate(ollama_kv_paged_video_evictions_total{{M}}[{R}]))`, "left video memory"},
		}},
	}},
}

// quantiles are queries of a histogram.
func quantiles(name string) []query {
	var all []query
	for _, q := range [][2]string{{"0.5", "half"}, {"0.95", "95 %"}, {"0.99", "99 %"}} {
		all = append(all, query{`histogram_quantile(` + q[0] + `, sum by (le) (rate(` + name + `_bucket{{M}}[{R}])))`, q[1]})
	}
	return all
}
