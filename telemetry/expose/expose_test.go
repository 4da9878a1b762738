package expose

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

const weights = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// sample is a state with every kind of metric.
func sample() telemetry.State {
	var meter telemetry.Meter
	for _, p := range []telemetry.Prompt{
		{Tokens: 1000, Local: 900, Computed: 100, Restore: 30 * time.Millisecond, Took: 2 * time.Second, Saved: 9 * time.Second},
		{Tokens: 5000, Slot: 10, RAM: 4980, Computed: 10, Restore: 3 * time.Millisecond, Took: 300 * time.Millisecond, Saved: time.Second},
		{Tokens: 50, Computed: 50, Took: 500 * time.Second, Miss: &telemetry.Miss{Cause: telemetry.CauseEvicted}},
	} {
		meter.Prompt(p)
	}
	meter.Add(telemetry.Series("ollama_kv_page_moves_total", "from", "slot", "to", "local"), 7)
	totals, _ := meter.Read()
	model := telemetry.Model{
		Weights: weights, Name: "qwen3:8b", Architecture: "qwen3", Fingerprint: "f", CacheType: "f16", PageTokens: 256, TokenBytes: 1000,
	}
	at := time.Unix(1_800_000_000, 500_000_000)
	return telemetry.State{
		Version: telemetry.Version, Root: "/pages", At: at, Since: at.Add(-time.Hour), Live: true,
		Models: []telemetry.ModelState{{Model: model, Engine: telemetry.EngineOllama, Totals: totals, LastUsed: at}},
		Processes: []telemetry.ProcessState{{
			Process: telemetry.Process{PID: 77, Engine: telemetry.EngineOllama}, Model: model, Started: at.Add(-time.Minute), At: at,
			Gauges:  map[string]float64{"ollama_kv_queue_pages": 3, "ollama_kv_queue_bytes": 300, "ollama_kv_queue_limit_bytes": 1 << 30},
			Slots:   []telemetry.Slot{{ID: 0, Tokens: 512, Bytes: 512_000, Hot: 2, Warm: 1, Cold: 2, Busy: true}, {ID: 1, Tokens: 100, Bytes: 80_000, Remote: 4}},
			Memory:  []telemetry.Memory{{Name: "write queue", Bytes: 300, Limit: 1 << 30}},
			Elastic: []telemetry.Elastic{{Segment: "kvcached_77_cuda0", Used: 3000, Kept: 200, Limit: 10_000}},
		}},
		Tiers: []telemetry.Tier{
			{Name: "local", Root: "/pages", Pages: 10, Tails: 2, Bytes: 12345, Booked: 20000, Budget: 20e9, WrittenToday: 999, WriteCap: 5e9},
			{Name: "remote", Root: "/nfs", Pages: 4, Bytes: 400, Budget: 0, Down: true},
		},
	}
}

func text(state telemetry.State, opt Options) string { return string(opt.Text(state)) }

// disk has counts of kvtier stat.
var booked int64 = 20001

var disk = Disk{Tier: "local", Root: "/pages", Pages: 11, Tails: 3, PageBytes: 12399, Booked: &booked, WrittenToday: 1001, QuarantinedFiles: 1, QuarantinedBytes: 30, TemporaryFiles: 2, TemporaryBytes: 9, Bytes: 1e12, FreeBytes: 4e11}

// TestGolden compares the text of a state with a file; KVTIER_UPDATE=1 writes the file.
func TestGolden(t *testing.T) {
	const golden = "testdata/metrics.txt"
	got := text(sample(), Options{Version: "1.2.3", Disks: []Disk{disk}})
	if os.Getenv("KVTIER_UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

var line = regexp.MustCompile(`^([a-z_:]+)(\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")*\})? (\S+)$`)

// requireWellFormed checks lines, families that stand together, and series that are there once.
func requireWellFormed(t *testing.T, text string) {
	t.Helper()
	require.True(t, strings.HasSuffix(text, "\n"))
	seen := make(map[string]bool)
	family := ""
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if rest, ok := strings.CutPrefix(l, "# HELP "); ok {
			family, _, _ = strings.Cut(rest, " ")
			require.False(t, seen[family], "%s stands twice", family)
			seen[family] = true
			continue
		}
		if rest, ok := strings.CutPrefix(l, "# TYPE "); ok {
			require.True(t, strings.HasPrefix(rest, family+" "), l)
			continue
		}
		m := line.FindStringSubmatch(l)
		require.NotNil(t, m, l)
		require.True(t, strings.HasPrefix(m[1], family), l)
		series := "series " + m[1] + m[2]
		require.False(t, seen[series], "%s stands twice", l)
		seen[series] = true
	}
}

// A histogram has every bucket, none less than the one before, and a count that is the last one,
// also where a report lacks some.
func TestHistogramsAreComplete(t *testing.T) {
	got := text(sample(), Options{})
	const labels = `engine="ollama",le="0.005",model="qwen3:8b"`
	require.Contains(t, got, "ollama_kv_restore_seconds_bucket{"+labels+"} 1\n")
	require.Contains(t, got, strings.ReplaceAll("ollama_kv_restore_seconds_bucket{"+labels+"} 2\n", "0.005", "100"))
	require.Contains(t, got, `ollama_kv_restore_seconds_count{engine="ollama",model="qwen3:8b"} 2`+"\n")
	require.Contains(t, got, `ollama_kv_prompt_seconds_bucket{engine="ollama",le="100",model="qwen3:8b"} 2`+"\n")
	require.Contains(t, got, `ollama_kv_prompt_seconds_bucket{engine="ollama",le="+Inf",model="qwen3:8b"} 3`+"\n")

	got = text(telemetry.State{Models: []telemetry.ModelState{{Totals: map[string]float64{
		`ollama_kv_restore_seconds_bucket{le="0.01"}`: 5,
		`ollama_kv_restore_seconds_bucket{le="1"}`:    3, // falls
		`ollama_kv_restore_seconds_bucket{le="0.3"}`:  9, // no bound of ours
		`ollama_kv_restore_seconds_count`:             4, // less than a bucket
	}}}}, Options{})
	require.Equal(t, 17, strings.Count(got, "ollama_kv_restore_seconds_bucket{"))
	for _, le := range []string{"0.01", "0.025", "1", "100", "+Inf"} {
		require.Contains(t, got, `ollama_kv_restore_seconds_bucket{le="`+le+`",model="other"} 5`+"\n")
	}
	require.Contains(t, got, `ollama_kv_restore_seconds_bucket{le="0.005",model="other"} 0`+"\n")
	require.NotContains(t, got, `le="0.3"`)
	require.Contains(t, got, "ollama_kv_restore_seconds_count{model=\"other\"} 5\n")
}

// Models of one name, and those without name or weights, are added up: Prometheus refuses
// two series with the same labels.
func TestModelsOfOneName(t *testing.T) {
	state := telemetry.State{}
	for _, m := range []telemetry.Model{
		{Name: "a", Weights: "11"}, {Name: "a", Weights: "22"}, {Weights: weights}, {Weights: weights, Namespace: "team"}, {}, {Fingerprint: "x"},
	} {
		state.Models = append(state.Models, telemetry.ModelState{Model: m, Engine: "ollama", Totals: map[string]float64{"ollama_kv_prompts_total": 1}})
	}
	got := text(state, Options{})
	requireWellFormed(t, got)
	require.Contains(t, got, `ollama_kv_prompts_total{engine="ollama",model="a"} 2`)
	require.Contains(t, got, `ollama_kv_prompts_total{engine="ollama",model="0123456789ab"} 1`)
	require.Contains(t, got, `ollama_kv_prompts_total{engine="ollama",model="0123456789ab",namespace="team"} 1`)
	require.Contains(t, got, `ollama_kv_prompts_total{engine="ollama",model="other"} 2`)
	require.Contains(t, got, `ollama_kv_model_info{engine="ollama",model="a",page_tokens="0",weights="22"} 1`)
}

// The daemon before a llama-server does not know the pages of a slot in tiers, which is not 0.
func TestUnknownPagesOfSlots(t *testing.T) {
	state := sample()
	state.Processes[0].Process.Engine = telemetry.EngineLlama
	require.Equal(t, []string{"slot"}, matches(`ollama_kv_slot_pages\{.*tier="([a-z]+)"`, text(state, Options{})))
	require.Len(t, matches(`ollama_kv_slot_pages\{.*tier="([a-z]+)"`, text(sample(), Options{})), 4)
}

// matches are the first groups of all matches.
func matches(pattern, text string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// A directory is one tier; memory of several processes adds up, and is down where one of them is.
func TestTiers(t *testing.T) {
	got := text(telemetry.State{Tiers: []telemetry.Tier{
		{Name: "ram", Pages: 1, Budget: 10}, {Name: "ram", Pages: 2, Budget: 10, Down: true}, {Name: "ram"},
	}}, Options{})
	requireWellFormed(t, got)
	require.Contains(t, got, `ollama_kv_tier_pages{tier="ram"} 3`+"\n")
	require.Contains(t, got, `ollama_kv_tier_budget_bytes{tier="ram"} 20`+"\n")
	require.Contains(t, got, `ollama_kv_tier_up{tier="ram"} 0`+"\n")
	require.NotContains(t, got, "booked", "0 is unknown")
}

// A count on disk replaces the figures of processes for the same directory, and leaves the rest.
func TestDisks(t *testing.T) {
	budget := int64(7e9)
	other := Disk{Tier: "remote", Root: "/else", Pages: 9, Budget: &budget}
	got := text(sample(), Options{Disks: []Disk{disk, other}})
	requireWellFormed(t, got)
	for _, line := range []string{
		`ollama_kv_tier_pages{root="/pages",tier="local"} 11`, `ollama_kv_tier_booked_bytes{root="/pages",tier="local"} 20001`,
		`ollama_kv_tier_budget_bytes{root="/pages",tier="local"} 2e+10`, `ollama_kv_tier_up{root="/pages",tier="local"} 1`,
		`ollama_kv_tier_pages{root="/nfs",tier="remote"} 4`, `ollama_kv_tier_pages{root="/else",tier="remote"} 9`,
		`ollama_kv_tier_budget_bytes{root="/else",tier="remote"} 7e+09`, `ollama_kv_tier_disk_bytes{root="/pages",tier="local"} 1e+12`,
	} {
		require.Contains(t, got, line+"\n")
	}
	for _, unknown := range []string{"booked_bytes", "up", "write_cap_bytes", "disk_bytes", "disk_free_bytes"} {
		require.NotContains(t, got, "ollama_kv_tier_"+unknown+`{root="/else"`)
	}
}

// Names are written as they are, with Prometheus's escapes and in UTF-8.
func TestHostileNames(t *testing.T) {
	state := sample()
	state.Models[0].Model.Name = "a\"b\\c\nd} 1\nevil_metric 1\xff"
	state.Tiers[0].Root = "/pages\n\"x\""
	got := text(state, Options{})
	requireWellFormed(t, got)
	require.Contains(t, got, `model="a\"b\\c\nd} 1\nevil_metric 1`+"\uFFFD"+`"`)
	require.NotContains(t, got, "\nevil_metric")
}

// Keys of other processes: unknown ones are left out, and so are values that no counter has.
func TestHostileKeys(t *testing.T) {
	for key, value := range map[string]float64{
		"":                               1,
		"evil_total":                     1,
		"ollama_kv_prompts_total":        math.NaN(),
		"ollama_kv_restores_total":       math.Inf(1),
		"ollama_kv_restored_bytes_total": -1,
		`ollama_kv_prompts_total{x="y"}`: 1,
		"ollama_kv_misses_total":         1, // without its label
		`ollama_kv_misses_total{cause="` + strings.Repeat("x", 65) + `"}`: 1,
		`ollama_kv_misses_total{cause="Liebe Grüße"}`:                     1,
		`ollama_kv_misses_total{cause="a\nb"}`:                            1,
		`ollama_kv_misses_total{cause="a\x"}`:                             1,
		`ollama_kv_misses_total{cause="a\`:                                1,
		`ollama_kv_misses_total{cause="a"`:                                1,
		`ollama_kv_misses_total{cause="a",}`:                              1,
		`ollama_kv_misses_total{cause="a"cause="b"}`:                      1,
		`ollama_kv_misses_total{cause}`:                                   1,
		`ollama_kv_misses_total{}`:                                        1,
		`ollama_kv_page_moves_total{from="a",from="b"}`:                   1,
		"ollama_kv_restore_seconds":                                       1,
		"ollama_kv_restore_seconds_bucket":                                1,
		"ollama_kv_prompts_total_sum":                                     1,
		"ollama_kv_queue_pages":                                           1, // a gauge among the totals
		"ollama_kv_up":                                                    9,
	} {
		got := text(telemetry.State{Models: []telemetry.ModelState{{Totals: map[string]float64{key: value}}}}, Options{})
		require.Equal(t, "# HELP ollama_kv_up 1, or 0 before a process has reported.\n# TYPE ollama_kv_up gauge\nollama_kv_up 0\n", got, "%q", key)
	}
	got := text(telemetry.State{Processes: []telemetry.ProcessState{{Gauges: map[string]float64{
		"ollama_kv_prompts_total": 1, `ollama_kv_tier_pages{tier="local"}`: 1, "ollama_kv_queue_pages": 1,
	}}}}, Options{})
	require.NotContains(t, got, "prompts")
	require.NotContains(t, got, "tier_pages", "counted once, of the state's tiers")
	require.Contains(t, got, `ollama_kv_queue_pages{model="other",pid="0"} 1`)
}

// A key that Series makes is parsed back.
func FuzzParse(f *testing.F) {
	f.Add("from", "a\\\"\nb", "to", "c")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		_, labels, ok := parse(telemetry.Series("name", "a", v1, "b", v2))
		require.True(t, ok)
		require.Equal(t, []label{{"a", v1}, {"b", v2}}, labels)
		parse(k1 + v1 + k2 + v2) // does not panic
		parse("x{" + v1 + "}")
		parse(`x{a="` + v1 + `"}`)
	})
}

// Text that nothing but words could put there is in no metric.
func TestNoWords(t *testing.T) {
	state := sample()
	words := &telemetry.Words{Begin: 1, Was: []int32{424242}, Is: []int32{434343}}
	state.Prompts = []telemetry.StatePrompt{{Prompt: telemetry.Prompt{Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Detail: "detail", Words: words}}}}
	state.Processes[0].Busters = []telemetry.Buster{{Words: words}}
	require.Equal(t, text(sample(), Options{}), text(state, Options{}))
}

// Extra families follow the rules of names, and none is also a process's.
func TestExtraNames(t *testing.T) {
	for _, m := range Extra {
		_, twice := telemetry.Find(m.Name)
		require.False(t, twice, m.Name)
		require.Regexp(t, `^ollama_kv_[a-z_]+$`, m.Name)
		require.Equal(t, telemetry.Gauge, m.Kind)
		require.True(t, strings.HasSuffix(m.Help, "."), m.Help)
	}
	require.Len(t, known, len(telemetry.Metrics)+len(Extra))
}

// Names of other people reach a terminal as well, where their escapes would spoil the text.
func TestLabelsAreShown(t *testing.T) {
	s := telemetry.State{Tiers: []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: "/a\u202e\u00a0\x1b\r\x00\"\\\nb"}}}
	require.Contains(t, text(s, Options{}), `root="/a�����\"\\\nb"`)
}
