package sizing

import (
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Advice is one recommendation. Nothing acts on it.
type Advice struct {
	ID       string     `json:"id"`
	Says     string     `json:"says"`
	Variable string     `json:"variable"` // to change; "" where it is no variable
	Change   string     `json:"change"`   // the change to make
	Evidence []Evidence `json:"evidence"`
}

// Evidence is a number that led to a recommendation.
type Evidence struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Observed is the evidence and the advice of a root's counters.
type Observed struct {
	Root    string        `json:"root"`
	Since   time.Time     `json:"since"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Live    bool          `json:"live"`
	Prompts float64       `json:"prompts"`
	Advice  []Advice      `json:"advice"`
}

// Thresholds: below them the counters are no evidence. docs/kvtier.md lists them.
const (
	promptsMin    = 20  // for anything about prompts
	pagesMin      = 200 // of pages read, read ahead or moved
	evictedMin    = 5   // prompts that missed evicted pages
	evictedShare  = 0.05
	promotedShare = 0.5 // of the pages that were demoted
	faultsPerPage = 2.0 // reads of each stored page
	fullShare     = 0.9 // of a budget
	queueShare    = 0.8 // of the queue's limit
	capShare      = 0.8 // of the bytes of a day
	computedShare = 0.5 // of the pages that were found
	stalledShare  = 0.1 // of the time
)

// rules are looked at in this order. Each is silent without enough evidence.
var rules = []struct {
	id    string
	apply func(c counters) *Advice
}{
	{"write_cap", writeCap},
	{"queue_full", queueFull},
	{"evicted_too_early", evictedTooEarly},
	{"promotion_pressure", promotionPressure},
	{"ram_tier_too_small", ramTooSmall},
	{"ram_tier_missing", ramMissing},
	{"disk_too_slow", diskTooSlow},
	{"paged_stalls", pagedStalls},
}

// Advise returns the advice of a root's counters. The same state always gives the same advice.
func Advise(now telemetry.State) Observed {
	c := counters{totals: map[string]float64{}, state: now, elapsed: max(0, now.At.Sub(now.Since))}
	for _, m := range now.Models {
		for series, n := range m.Totals {
			c.totals[series] += n
		}
	}
	o := Observed{Root: now.Root, Since: now.At.Add(-c.elapsed), Elapsed: c.elapsed, Live: now.Live, Prompts: c.of("ollama_kv_prompts_total"), Advice: []Advice{}}
	for _, rule := range rules {
		if advice := rule.apply(c); advice != nil {
			advice.ID = rule.id
			o.Advice = append(o.Advice, *advice)
		}
	}
	return o
}

func writeCap(c counters) *Advice {
	local, ok := c.tier(telemetry.PlaceLocal)
	capped := c.of("ollama_kv_write_capped_pages_total")
	if !ok || local.WriteCap <= 0 || capped < 1 && float64(local.WrittenToday) < capShare*float64(local.WriteCap) {
		return nil
	}
	says := "The day's limit of writing is nearly reached: past it no page is stored before the next day."
	if capped >= 1 {
		says = "Pages were not stored because of the day's limit of writing, and their tokens are computed again."
	}
	return &Advice{
		Says: says, Variable: "OLLAMA_KV_TIER_WRITE_GB_PER_DAY", Change: "raise it, or store smaller pages with OLLAMA_KV_TIER_COMPRESS=1 or OLLAMA_KV_CACHE_TYPE=q8_0",
		Evidence: []Evidence{{"pages not stored", capped}, {"bytes written today", float64(local.WrittenToday)}, {"bytes of the limit", float64(local.WriteCap)}},
	}
}

func queueFull(c counters) *Advice {
	share, bytes, limit := c.queue()
	dropped := c.of("ollama_kv_dropped_pages_total")
	if dropped < 1 && share < queueShare {
		return nil
	}
	says := "Pages wait for the disk, and the memory for them is nearly full."
	if dropped >= 1 {
		says = "Pages were lost because the disk was not quick enough for them, or failed."
	}
	return &Advice{
		Says: says, Variable: "OLLAMA_KV_TIER_LOCAL", Change: "name a directory on a quicker disk, or store smaller pages with OLLAMA_KV_CACHE_TYPE=q8_0",
		Evidence: []Evidence{{"pages lost", dropped}, {"bytes waiting", bytes}, {"bytes that may wait", limit}},
	}
}

func evictedTooEarly(c counters) *Advice {
	prompts, missed := c.of("ollama_kv_prompts_total"), c.sum("ollama_kv_misses_total", "cause", string(telemetry.CauseEvicted))
	if prompts < promptsMin || missed < evictedMin || missed < evictedShare*prompts {
		return nil
	}
	evidence := []Evidence{
		{"prompts", prompts}, {"prompts whose pages had been evicted", missed},
		{"tokens they computed", c.sum("ollama_kv_missed_tokens_total", "cause", string(telemetry.CauseEvicted))},
	}
	twice, four := c.of("ollama_kv_returned_pages_total", "room", "2x"), c.of("ollama_kv_returned_pages_total", "room", "4x")
	if all := twice + four + c.of("ollama_kv_returned_pages_total", "room", "more"); all > 0 {
		evidence = append(evidence,
			Evidence{"pages that left the local tier and were stored again", all},
			Evidence{"of these, pages that twice its room would have kept", twice},
			Evidence{"of these, pages that four times its room would have kept", twice + four})
	}
	variable, change := "OLLAMA_KV_TIER_LOCAL_GB", "raise it, or name a larger directory in OLLAMA_KV_TIER_REMOTE"
	if remote, ok := c.tier(telemetry.PlaceRemote); ok {
		variable, change = "OLLAMA_KV_TIER_REMOTE_GB", "raise it"
		evidence = append(evidence, Evidence{"bytes of the remote budget", float64(remote.Budget)})
	} else if local, ok := c.tier(telemetry.PlaceLocal); ok {
		evidence = append(evidence, Evidence{"bytes of the local budget", float64(local.Budget)})
	}
	return &Advice{Says: "Conversations come back after their pages were evicted: the disks hold too little.", Variable: variable, Change: change, Evidence: evidence}
}

func promotionPressure(c counters) *Advice {
	up := c.of("ollama_kv_page_moves_total", "from", telemetry.PlaceRemote, "to", telemetry.PlaceLocal)
	down := c.of("ollama_kv_page_moves_total", "from", telemetry.PlaceLocal, "to", telemetry.PlaceRemote)
	if up < pagesMin || down < pagesMin || up < promotedShare*down {
		return nil
	}
	return &Advice{
		Says:     "Pages move to the remote tier and soon come back: the local tier holds less than is in use.",
		Variable: "OLLAMA_KV_TIER_LOCAL_GB", Change: "raise it",
		Evidence: []Evidence{{"pages that came back", up}, {"pages that moved away", down}},
	}
}

// diskFaults are pages that restores read from a tier's files.
func diskFaults(c counters, tier string) float64 {
	return c.of("ollama_kv_page_faults_total", "tier", tier)
}

func ramTooSmall(c counters) *Advice {
	ram, ok := c.tier(telemetry.PlaceRAM)
	local, _ := c.tier(telemetry.PlaceLocal)
	faults := diskFaults(c, telemetry.PlaceLocal) + diskFaults(c, telemetry.PlaceRemote)
	held := float64(max(ram.Booked, ram.Bytes))
	if !ok || ram.Budget <= 0 || held < fullShare*float64(ram.Budget) || faults < pagesMin || faults < faultsPerPage*float64(local.Pages) {
		return nil
	}
	return &Advice{
		Says:     "The RAM tier is full, and the same pages are read from disk again and again.",
		Variable: "OLLAMA_KV_TIER_RAM_GB", Change: "raise it",
		Evidence: []Evidence{{"pages read from disk", faults}, {"pages on the local disk", float64(local.Pages)}, {"bytes in the RAM tier", held}, {"bytes of its budget", float64(ram.Budget)}},
	}
}

func ramMissing(c counters) *Advice {
	if ram, ok := c.tier(telemetry.PlaceRAM); ok && ram.Budget > 0 {
		return nil
	}
	remote, hasRemote := c.tier(telemetry.PlaceRemote)
	faults := diskFaults(c, telemetry.PlaceRemote)
	if !hasRemote || faults < pagesMin || faults < faultsPerPage*float64(remote.Pages) {
		return nil
	}
	return &Advice{
		Says:     "The same pages are read from the remote tier again and again, and there is no RAM tier.",
		Variable: "OLLAMA_KV_TIER_RAM_GB", Change: "set it to the memory that you can spare",
		Evidence: []Evidence{{"pages read from the remote tier", faults}, {"pages there", float64(remote.Pages)}},
	}
}

func diskTooSlow(c counters) *Advice {
	computed := c.of("ollama_kv_gate_pages_total", "decision", "compute")
	read := c.of("ollama_kv_gate_pages_total", "decision", "read")
	if computed+read < pagesMin || computed < computedShare*(computed+read) {
		return nil
	}
	return &Advice{
		Says:     "Most stored pages are not read, because computing their tokens is quicker than this disk or share.",
		Variable: "OLLAMA_KV_TIER_LOCAL", Change: "name a directory on a quicker disk, or store smaller pages with OLLAMA_KV_CACHE_TYPE=q8_0; kvtier plan shows the rate that is needed",
		Evidence: []Evidence{{"pages computed", computed}, {"pages read", read}},
	}
}

func pagedStalls(c counters) *Advice {
	stalled, misses := c.of("ollama_kv_paged_stall_seconds_total"), c.of("ollama_kv_paged_misses_total")
	if misses < pagesMin || c.elapsed <= 0 || stalled < stalledShare*c.elapsed.Seconds() {
		return nil
	}
	return &Advice{
		Says:     "Paged attention waits for pages that do not fit in its memory.",
		Variable: "OLLAMA_PAGED_HOST_GB", Change: "raise it",
		Evidence: []Evidence{{"seconds of waiting", stalled}, {"seconds in all", c.elapsed.Seconds()}, {"pages that were read", misses}, {"pages that were in memory", c.of("ollama_kv_paged_hits_total")}},
	}
}

// counters are the totals of a root's processes since they began.
type counters struct {
	totals  map[string]float64 // of all models
	elapsed time.Duration
	state   telemetry.State
}

// of is the total of one series.
func (c counters) of(name string, pairs ...string) float64 {
	return max(0, c.totals[telemetry.Series(name, pairs...)])
}

// sum is the total of all series of a metric that have a label of a value.
func (c counters) sum(name, label, value string) (n float64) {
	part := label + `="` + value + `"`
	for series, total := range c.totals {
		if strings.HasPrefix(series, name+"{") && strings.Contains(series, part) {
			n += total
		}
	}
	return max(0, n)
}

// tier is the state of a tier, and false where no process has it.
func (c counters) tier(name string) (telemetry.Tier, bool) {
	for _, t := range c.state.Tiers {
		if t.Name == name {
			return t, true
		}
	}
	return telemetry.Tier{}, false
}

// queue is the fullest queue of the processes, as a share of its limit.
func (c counters) queue() (share, bytes, limit float64) {
	for _, p := range c.state.Processes {
		l := p.Gauges["ollama_kv_queue_limit_bytes"]
		if b := p.Gauges["ollama_kv_queue_bytes"]; l > 0 && b/l > share {
			share, bytes, limit = b/l, b, l
		}
	}
	return share, bytes, limit
}
