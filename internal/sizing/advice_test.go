package sizing

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// counted is a state of a root after a time, with one model and its totals.
func counted(after time.Duration, totals map[string]float64, tiers ...telemetry.Tier) telemetry.State {
	return telemetry.State{
		Version: telemetry.Version, Root: "/pages", Since: began, At: began.Add(after), Live: true, Tiers: tiers,
		Models: []telemetry.ModelState{{Totals: totals}},
	}
}

func ids(o Observed) []string {
	list := []string{}
	for _, a := range o.Advice {
		list = append(list, a.ID)
	}
	return list
}

const (
	prompts   = "ollama_kv_prompts_total"
	evicted   = `ollama_kv_misses_total{cause="evicted"}`
	promoted  = `ollama_kv_page_moves_total{from="remote",to="local"}`
	demoted   = `ollama_kv_page_moves_total{from="local",to="remote"}`
	faults    = `ollama_kv_page_faults_total{tier="local"}`
	far       = `ollama_kv_page_faults_total{tier="remote"}`
	fromFar   = `ollama_kv_prompt_tokens_total{source="remote"}`
	computedP = `ollama_kv_gate_pages_total{decision="compute"}`
	readP     = `ollama_kv_gate_pages_total{decision="read"}`
	dropped   = "ollama_kv_dropped_pages_total"
	capped    = "ollama_kv_write_capped_pages_total"
	stall     = "ollama_kv_paged_stall_seconds_total"
	pagedMiss = "ollama_kv_paged_misses_total"
)

type totals = map[string]float64

// Each rule speaks at its threshold, and is silent below it.
func TestAdviceAtThresholds(t *testing.T) {
	local := telemetry.Tier{Name: "local", Pages: 100, Booked: 10e9, Budget: 20e9}
	ram := telemetry.Tier{Name: "ram", Pages: 90, Booked: 9e8, Budget: 1e9}
	remote := telemetry.Tier{Name: "remote", Pages: 100, Booked: 10e9, Budget: 20e9}
	with := func(t telemetry.Tier, change func(*telemetry.Tier)) telemetry.Tier { change(&t); return t }
	const day = 24 * time.Hour
	tested := map[string]bool{}
	for name, test := range map[string]struct {
		id       string
		says     telemetry.State
		silent   []telemetry.State
		variable string
	}{
		"capped": {"write_cap", counted(day, totals{capped: 1}, with(local, func(t *telemetry.Tier) { t.WriteCap = 1e9 })),
			[]telemetry.State{counted(day, totals{}, with(local, func(t *telemetry.Tier) { t.WriteCap = 1e9 })), counted(day, totals{capped: 1}, local)},
			"OLLAMA_KV_TIER_WRITE_GB_PER_DAY"},
		"near the cap": {"write_cap", counted(day, nil, with(local, func(t *telemetry.Tier) { t.WriteCap, t.WrittenToday = 1e9, 8e8 })),
			[]telemetry.State{counted(day, nil, with(local, func(t *telemetry.Tier) { t.WriteCap, t.WrittenToday = 1e9, 8e8-1 }))},
			"OLLAMA_KV_TIER_WRITE_GB_PER_DAY"},
		"dropped": {"queue_full", counted(day, totals{dropped: 1}), []telemetry.State{counted(day, totals{dropped: 0})}, "OLLAMA_KV_TIER_LOCAL"},
		"evicted": {"evicted_too_early", counted(day, totals{prompts: 100, evicted: 5}, local),
			[]telemetry.State{counted(day, totals{prompts: 101, evicted: 5}, local), counted(day, totals{prompts: 19, evicted: 19}, local), counted(day, totals{prompts: 20, evicted: 4}, local)},
			"OLLAMA_KV_TIER_LOCAL_GB"},
		"evicted from the last tier": {"evicted_too_early", counted(day, totals{prompts: 20, evicted: 5, fromFar: 1}, local, remote), nil, "OLLAMA_KV_TIER_REMOTE_GB"},
		"promoted": {"promotion_pressure", counted(day, totals{promoted: 200, demoted: 400}),
			[]telemetry.State{counted(day, totals{promoted: 199, demoted: 200}), counted(day, totals{promoted: 200, demoted: 401}), counted(day, totals{promoted: 500})},
			"OLLAMA_KV_TIER_LOCAL_GB"},
		"repeated faults": {"ram_tier_too_small", counted(day, totals{faults: 200}, local, ram),
			[]telemetry.State{
				counted(day, totals{faults: 199}, local, ram), counted(day, totals{faults: 200}, local),
				counted(day, totals{faults: 200}, with(local, func(t *telemetry.Tier) { t.Pages = 101 }), ram),
				counted(day, totals{faults: 200}, local, with(ram, func(t *telemetry.Tier) { t.Booked = 9e8 - 1 })),
			}, "OLLAMA_KV_TIER_RAM_GB"},
		"repeated remote faults": {"ram_tier_missing", counted(day, totals{far: 200}, local, remote),
			[]telemetry.State{counted(day, totals{far: 199}, local, remote), counted(day, totals{far: 200}, local), counted(day, totals{far: 200}, local, with(remote, func(t *telemetry.Tier) { t.Pages = 101 }))},
			"OLLAMA_KV_TIER_RAM_GB"},
		"slow disk": {"disk_too_slow", counted(day, totals{computedP: 100, readP: 100}),
			[]telemetry.State{counted(day, totals{computedP: 99, readP: 101}), counted(day, totals{computedP: 199})},
			"OLLAMA_KV_TIER_LOCAL"},
		"stalls": {"paged_stalls", counted(1000*time.Second, totals{stall: 100, pagedMiss: 200}),
			[]telemetry.State{counted(1001*time.Second, totals{stall: 100, pagedMiss: 200}), counted(1000*time.Second, totals{stall: 900, pagedMiss: 199}), counted(0, totals{stall: 900, pagedMiss: 200})},
			"OLLAMA_PAGED_HOST_GB"},
	} {
		tested[test.id] = true
		o := Advise(test.says)
		require.Equal(t, []string{test.id}, ids(o), name)
		require.Equal(t, test.variable, o.Advice[0].Variable, name)
		require.NotEmpty(t, o.Advice[0].Evidence, name)
		require.Equal(t, o, Advise(test.says), name)
		for i, s := range test.silent {
			require.Empty(t, ids(Advise(s)), "%s, %d", name, i)
		}
	}
	require.Len(t, tested, len(rules), "a rule without a test")
}

// The queue is a gauge of each process.
func TestAdviceOnTheQueue(t *testing.T) {
	s := counted(time.Hour, nil)
	queue := func(bytes float64) telemetry.ProcessState {
		return telemetry.ProcessState{Gauges: map[string]float64{"ollama_kv_queue_bytes": bytes, "ollama_kv_queue_limit_bytes": 100}}
	}
	s.Processes = []telemetry.ProcessState{queue(1), queue(79)}
	require.Empty(t, ids(Advise(s)))
	s.Processes = append(s.Processes, queue(80))
	require.Equal(t, []string{"queue_full"}, ids(Advise(s)))
}

// Rules read metrics that processes report.
func TestRulesReadKnownMetrics(t *testing.T) {
	source, err := os.ReadFile("advice.go")
	require.NoError(t, err)
	named := regexp.MustCompile(`"(ollama_kv_[a-z_]+)"`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, named)
	for _, name := range named {
		_, ok := telemetry.Find(name[1])
		require.True(t, ok, name[1])
	}
}

// Totals of all models add up.
func TestAdviceOfSeveralModels(t *testing.T) {
	s := counted(time.Hour, totals{prompts: 10, evicted: 3})
	s.Models = append(s.Models, telemetry.ModelState{Totals: totals{prompts: 10, evicted: 2}})
	o := Advise(s)
	require.Equal(t, 20.0, o.Prompts)
	require.Equal(t, []string{"evicted_too_early"}, ids(o))
}

// A state without anything recommends nothing.
func TestAdviceOfNothing(t *testing.T) {
	o := Advise(telemetry.State{})
	require.Empty(t, o.Advice)
	require.NotNil(t, o.Advice) // [] in JSON
}
