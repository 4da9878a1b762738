package collect

import (
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

func encoded(t testing.TB, r *telemetry.Report) []byte {
	data, err := json.Marshal(r)
	require.NoError(t, err)
	return data
}

func TestReportsThatAreAccepted(t *testing.T) {
	r := testReport(1, prompts(1))
	r.Gauges = map[string]float64{"ollama_kv_queue_pages": -1, `ollama_kv_tier_pages{tier="local"}`: 2}
	r.Slots = []telemetry.Slot{{ID: 1, Saved: -time.Second}}
	r.Prompts = []telemetry.Prompt{{Seq: 1, At: testStart, Saved: -1, Miss: &telemetry.Miss{Cause: telemetry.CauseEvicted, From: telemetry.PlaceLocal}}}
	r.Tiers, r.Memory, r.Busters = []telemetry.Tier{{Name: telemetry.PlaceRAM}}, []telemetry.Memory{{Name: "queue"}}, []telemetry.Buster{{Begin: 1, End: 2}}
	r.Unpaged = &telemetry.Unpaged{Reason: "it has state", Remedy: "lower num_ctx"}
	got, err := decodeReport(encoded(t, r))
	require.NoError(t, err)
	require.Equal(t, r, got)
}

// Everything that a meter counts is known.
func TestSeriesOfAMeter(t *testing.T) {
	source := testSource(1)
	source.Meter.Prompt(telemetry.Prompt{Tokens: 9, Local: 3, Computed: 6, Took: time.Second, Miss: &telemetry.Miss{Cause: telemetry.CauseEvicted}})
	r := source.Report()
	got, err := decodeReport(encoded(t, &r))
	require.NoError(t, err)
	require.Equal(t, r.Totals, got.Totals)
}

func TestSeries(t *testing.T) {
	for key, want := range map[string]bool{
		"ollama_kv_prompts_total":                                          true,
		"ollama_kv_prompts_total{}":                                        false,
		`ollama_kv_prompts_total{source="x"}`:                              false,
		`ollama_kv_prompt_tokens_total{source="x"}`:                        true,
		`ollama_kv_prompt_tokens_total{source="x"`:                         false,
		`ollama_kv_prompt_tokens_total{source="x"}}`:                       false,
		`ollama_kv_prompt_tokens_total{source="x",}`:                       false,
		`ollama_kv_prompt_tokens_total{source="x",source="x"}`:             false,
		`ollama_kv_prompt_tokens_total{source="\\ \" "}`:                   true,
		`ollama_kv_prompt_tokens_total{source="\n"}`:                       false,
		"ollama_kv_prompt_tokens_total{source=\"\x1b\"}":                   false,
		`ollama_kv_prompt_tokens_total{source=x}`:                          false,
		`ollama_kv_page_moves_total{from="a",to="b"}`:                      true,
		`ollama_kv_page_moves_total{to="b",from="a"}`:                      false,
		`ollama_kv_restore_seconds`:                                        false,
		`ollama_kv_restore_seconds_sum`:                                    true,
		`ollama_kv_restore_seconds_count`:                                  true,
		`ollama_kv_restore_seconds_bucket`:                                 false,
		`ollama_kv_restore_seconds_bucket{le="0.01"}`:                      true,
		`ollama_kv_restore_seconds_bucket{le="+Inf"}`:                      true,
		`ollama_kv_restore_seconds_bucket{le="0.3"}`:                       false,
		`ollama_kv_queue_pages`:                                            false, // a gauge
		`ollama_kv_other_total`:                                            false,
		``:                                                                 false,
		`{`:                                                                false,
		`ollama_kv_misses_total{cause="` + strings.Repeat("x", 600) + `"}`: false,
	} {
		require.Equal(t, want, isSeries(key, telemetry.Counter), key)
	}
}

// A build that knows more series than this one is heard nevertheless.
func TestUnknownSeriesAreLeftOut(t *testing.T) {
	got, err := decodeReport(encoded(t, testReport(1, map[string]float64{promptsTotal: 1, "ollama_kv_new_total": 1})))
	require.NoError(t, err)
	require.Equal(t, prompts(1), got.Totals)
}

func TestHostileReports(t *testing.T) {
	many := func(n int, text string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(text+",", n), ",") + "]"
	}
	long := strings.Repeat("x", telemetry.NameBytesMax+1)
	with := func(edit func(*telemetry.Report)) string {
		r := testReport(1, prompts(1))
		edit(r)
		return string(encoded(t, r))
	}
	replace := func(old, new string) string {
		r := testReport(1, prompts(1))
		text := string(encoded(t, r))
		require.Contains(t, text, old)
		return strings.Replace(text, old, new, 1)
	}
	miss := func(m telemetry.Miss) string {
		return with(func(r *telemetry.Report) { r.Prompts = []telemetry.Prompt{{Miss: &m}} })
	}
	for name, text := range map[string]string{
		"nothing": "", "cut off": `{"version":1`, "null": "null", "another type": "[]", "two": `{"version":1}{}`,
		"deep":            strings.Repeat("[", 100_000),
		"future":          replace(`"version":1`, `"version":2`),
		"no process":      replace(`"pid":1`, `"pid":0`),
		"an engine":       replace(telemetry.EngineOllama, "vllm"),
		"boot":            with(func(r *telemetry.Report) { r.Process.Boot = long }),
		"weights":         with(func(r *telemetry.Report) { r.Model.Weights = long }),
		"namespace":       with(func(r *telemetry.Report) { r.Model.Namespace = long }),
		"escape sequence": with(func(r *telemetry.Report) { r.Model.Name = "\x1b[2J" }),
		"negative page":   with(func(r *telemetry.Report) { r.Model.PageTokens = -1 }),
		"negative total":  replace(`_total":1`, `_total":-1`),
		"large total":     replace(`_total":1`, `_total":1e300`),
		"infinite total":  replace(`_total":1`, `_total":1e999`),
		"NaN":             replace(`_total":1`, `_total":NaN`),
		"text":            replace(`_total":1`, `_total":"1"`),
		"year":            replace(`"at":"2026`, `"at":"9999`),
		"no time":         replace(`"at":"2026`, `"at":"x`),
		"zone":            replace(`"at":"`, `"at":"2026-01-02T03:04:05+24:00","x":"`),
		"zone of a start": replace(`"started":"`, `"started":"2026-01-02T03:04:05-24:00","x":"`),
		"series": with(func(r *telemetry.Report) {
			for i := range telemetry.SeriesMax + 1 {
				r.Totals[telemetry.FormatBound(float64(i))] = 1
			}
		}),
		"slots":          replace(`"slots":null`, `"slots":`+many(telemetry.SlotsMax+1, "{}")),
		"slots of {":     replace(`"slots":null`, `"slots":{}`),
		"prompts":        replace(`"prompts":null`, `"prompts":`+many(telemetry.PromptsMax+1, "{}")),
		"tiers":          replace(`"tiers":null`, `"tiers":`+many(tiersMax+1, `{"name":"ram"}`)),
		"a tier":         replace(`"tiers":null`, `"tiers":[{"name":"tape"}]`),
		"unpaged":        with(func(r *telemetry.Report) { r.Unpaged = &telemetry.Unpaged{Reason: long} }),
		"a remedy":       with(func(r *telemetry.Report) { r.Unpaged = &telemetry.Unpaged{Remedy: "\x1b[2J"} }),
		"negative bytes": replace(`"tiers":null`, `"tiers":[{"name":"ram","bytes":-1}]`),
		"memory":         replace(`"memory":null`, `"memory":`+many(memoryMax+1, "{}")),
		"busters":        replace(`"memory":null`, `"memory":null,"busters":`+many(telemetry.BustersMax+1, "{}")),
		"cause":          miss(telemetry.Miss{Cause: "because"}),
		"detail":         miss(telemetry.Miss{Cause: telemetry.CauseEvicted, Detail: long}),
		"place":          miss(telemetry.Miss{Cause: telemetry.CauseEvicted, From: long}),
		"position":       miss(telemetry.Miss{Cause: telemetry.CauseEvicted, At: -1}),
		"words":          miss(telemetry.Miss{Cause: telemetry.CauseDiffers, Words: &telemetry.Words{Is: make([]int32, telemetry.WordsMax+1)}}),
	} {
		_, err := decodeReport([]byte(text))
		require.Error(t, err, name)
	}
}

// A million empty objects are refused before they take memory.
func TestListsAreBoundedBeforeTheyAreDecoded(t *testing.T) {
	text := []byte(`{"version":1,"slots":[` + strings.TrimSuffix(strings.Repeat("{},", telemetry.ReportBytesMax/3-20), ",") + `]}`)
	require.LessOrEqual(t, len(text), telemetry.ReportBytesMax)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := decodeReport(text)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "more than 256 slots")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}

// An answer is bounded as a report is: a reader that is root asks the programs of other users.
func TestStatesAreBoundedBeforeTheyAreDecoded(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("{},", telemetry.StateBytesMax/3-200), ",")
	for _, begin := range []string{`"prompts":[`, `"models":[`, `"tiers":[`, `"processes":[`, `"processes":[{"slots":[`, `"processes":[{"memory":[`, `"processes":[{"busters":[`} {
		end := "]}"
		if strings.Contains(begin, "{") {
			end = "]}]}"
		}
		text := []byte(`{"version":1,` + begin + many + end)
		require.LessOrEqual(t, len(text), telemetry.StateBytesMax)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decodeState(text)
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, "there are more than", begin)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), begin)
	}
	for _, text := range []string{"", "null", "[]", `{"version":2}`, `{"version":1,"prompts":{}}`} {
		_, err := decodeState([]byte(text))
		require.Error(t, err, text)
	}
}

// A private prompt has no Words here, even if its process sent some.
func TestWordsOfAPrivatePromptAreDropped(t *testing.T) {
	r := testReport(1, nil)
	r.Prompts = []telemetry.Prompt{{Private: true, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: &telemetry.Words{Is: []int32{7}}}}}
	got, err := decodeReport(encoded(t, r))
	require.NoError(t, err)
	require.Nil(t, got.Prompts[0].Miss.Words)
}

// FuzzReport: bytes are refused, or lead to books whose state and file can be encoded and read
// again.
func FuzzReport(f *testing.F) {
	f.Add(encoded(f, testReport(1, prompts(1))))
	f.Add(encoded(f, largest(1)))
	r := testReport(2, prompts(3))
	r.Prompts = []telemetry.Prompt{{Seq: 1, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: &telemetry.Words{Is: []int32{7}}}}}
	r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceRAM}}
	f.Add(encoded(f, r))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeReport(data)
		if err != nil {
			return
		}
		b, c := testBooks()
		require.NoError(t, b.add(r, 0, false))
		c.at = c.at.Add(time.Second)
		s := b.stateForTest()
		for _, m := range s.Models {
			for series, value := range m.Totals {
				require.True(t, isSeries(series, telemetry.Counter))
				require.True(t, value >= 0 && !math.IsInf(value, 0))
			}
		}
		keepWords(&s, nil)
		text, err := encodeState(s)
		require.NoError(t, err)
		require.NotContains(t, string(text), `"words"`)
		require.NoError(t, json.Unmarshal(text, new(telemetry.State)))
		content, _ := b.file()
		text, err = encode(content)
		require.NoError(t, err)
		again, _ := testBooks()
		require.NoError(t, again.fill(text, ""))
		require.Equal(t, total(s, promptsTotal), total(again.stateForTest(), promptsTotal))
	})
}

// FuzzTotals: a file is refused, or its content comes back.
func FuzzTotals(f *testing.F) {
	b, _ := testBooks()
	for pid := range 3 {
		require.NoError(f, b.add(testReport(pid+1, prompts(3)), 0, pid == 0))
	}
	content, _ := b.file()
	text, err := encode(content)
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"version":1,"models":[{"series":["x"],"totals":[1]}],"processes":[{"model":0,"totals":[2]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, _ := testBooks()
		if err := b.fill(data, ""); err != nil {
			require.ErrorIs(t, err, errContent)
			require.Empty(t, b.models)
			require.Empty(t, b.processes)
			return
		}
		require.NoError(t, b.add(testReport(1, prompts(1)), 0, false))
		content, _ := b.file()
		text, err := encode(content)
		require.NoError(t, err)
		again, _ := testBooks()
		require.NoError(t, again.fill(text, ""))
		require.Equal(t, b.stateForTest().Models, again.stateForTest().Models)
	})
}
