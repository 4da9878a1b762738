package show

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/telemetry"
)

var now = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func TestBecause(t *testing.T) {
	require.Equal(t, "From token 1,024 on: the pages are not stored any more (from the local tier, 3 h ago, room was needed).",
		Because(telemetry.Miss{Cause: telemetry.CauseEvicted, At: 1024, When: now.Add(-3*time.Hour - time.Minute), From: "local", Detail: "room was needed"}, now))
	require.Contains(t, Because(telemetry.Miss{Cause: telemetry.CauseEvicted, From: telemetry.PlaceSlot}, now), "(before they were stored)")
	require.Contains(t, Because(telemetry.Miss{Cause: telemetry.CauseEvicted, From: telemetry.PlaceRAM}, now), "(from memory)")
	never := telemetry.Miss{Cause: telemetry.CauseEvicted, From: telemetry.PlaceSlot, Detail: "it was never stored: the queue was full"}
	require.Equal(t, "From token 0 on: the pages are not stored any more (it was never stored: the queue was full).", Because(never, now))
	require.Equal(t, neverStored, Remedy(never))
	require.Equal(t, "From token 0 on: the same tokens are stored for other weights or adapters (adapters).",
		Because(telemetry.Miss{Cause: telemetry.CauseWeights, Detail: "adapters"}, now))
}

func TestUnits(t *testing.T) {
	for s, want := range map[float64]string{
		0: "0 s", -1: "0 s", math.NaN(): "0 s", 0.0004: "0 s", 0.12: "120 ms", 0.9996: "1.0 s", 28.14: "28.1 s",
		59.96: "1 min", 200: "3 min 20 s", 3599.6: "1 h", 7500: "2 h 5 min", 86399: "1 d", 4*86400 + 3*3600: "4 d 3 h",
		1e300: "more than a million days", math.Inf(1): "more than a million days",
	} {
		require.Equal(t, want, Seconds(s), s)
	}
	for d, want := range map[time.Duration]string{
		-time.Hour: "just now", 0: "just now", 59 * time.Second: "59 s ago", 61 * time.Second: "1 min ago",
		47 * time.Hour: "47 h ago", 49 * time.Hour: "2 d ago",
	} {
		require.Equal(t, want, Ago(now.Add(-d), now))
	}
	require.Equal(t, "never", Ago(time.Time{}, now))
	for n, want := range map[int64]string{0: "0", 999: "999", -1000: "-1,000", 1234567: "1,234,567"} {
		require.Equal(t, want, Count(n))
	}
}

func named(weights, own string) string {
	if own != "" {
		return own
	}
	return "weights " + weights
}

// meterOf has two prompts of a chat, and one whose pages were evicted.
func meterOf() *telemetry.Meter {
	var m telemetry.Meter
	m.Prompt(telemetry.Prompt{Tokens: 100, Computed: 100, Miss: &telemetry.Miss{Cause: telemetry.CauseNeverSeen}})
	m.Prompt(telemetry.Prompt{Tokens: 150, Slot: 40, RAM: 10, Local: 20, Remote: 5, Shifted: 5, Computed: 70, Saved: time.Second,
		Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, At: 80}})
	m.Prompt(telemetry.Prompt{Tokens: 20, Computed: 20, Miss: &telemetry.Miss{Cause: telemetry.CauseEvicted}})
	m.Prompt(telemetry.Prompt{Tokens: 50, Slot: 49, Computed: 1})
	return &m
}

func TestModels(t *testing.T) {
	totals, _ := meterOf().Read()
	model := telemetry.Model{Weights: "w", Namespace: "n"}
	state := telemetry.State{
		Models: []telemetry.ModelState{
			{Model: model, Engine: telemetry.EngineOllama, Totals: totals, LastUsed: now},
			{Model: telemetry.Model{Weights: "v", Name: "v:latest"}},
		},
		Processes: []telemetry.ProcessState{{Model: model, Process: telemetry.Process{Engine: telemetry.EngineOllama}}},
	}
	got := Models(state, named)
	share := 129.0 / 320
	require.Equal(t, Model{
		Model: "weights w", Weights: "w", Namespace: "n", Engine: "ollama", Loaded: true, Prompts: 4, Tokens: 320, Slot: 89, Restored: 40,
		Computed: 191, Reused: 129, ReusedShare: &share, Restores: 1, SavedSeconds: 1, LastUsed: &now,
	}, got[0])
	require.Equal(t, Model{Model: "v:latest", Weights: "v"}, got[1])

	causes := CauseTotals(state.Models)
	require.Len(t, causes, 3)
	require.Equal(t, []any{telemetry.CauseNeverSeen, int64(1), int64(100)}, []any{causes[0].Cause, causes[0].Prompts, causes[0].Tokens})
}

// A state comes from a file, and so may hold any numbers. Rows stay printable as JSON.
func TestAnyTotals(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		totals := make(map[string]float64)
		series := []string{"ollama_kv_prompts_total", "ollama_kv_saved_seconds_total", `ollama_kv_prompt_tokens_total{source="slot"}`,
			`ollama_kv_missed_tokens_total{cause="evicted"}`, `ollama_kv_prompt_tokens_total{source="computed"}`}
		for _, s := range series {
			totals[s] = rapid.Float64().Draw(r, s)
		}
		models := Models(telemetry.State{Models: []telemetry.ModelState{{Totals: totals}}}, named)
		_, err := json.Marshal(models)
		require.NoError(r, err)
		require.GreaterOrEqual(r, models[0].Tokens, int64(0))
		if share := models[0].ReusedShare; share != nil {
			require.True(r, *share >= 0 && *share <= 1)
		}
	})
}

func TestProcesses(t *testing.T) {
	state := telemetry.State{Processes: []telemetry.ProcessState{
		{
			Model: telemetry.Model{Weights: "z"}, Process: telemetry.Process{Engine: telemetry.EngineLlama},
			Slots: []telemetry.Slot{{Hot: 3, Shifted: true, Lossy: true}}, // it does not know pages in tiers
		},
		{
			Model: telemetry.Model{Weights: "a", CacheType: "q8_0"}, Process: telemetry.Process{PID: 7, Engine: telemetry.EngineOllama}, At: now,
			Slots:  []telemetry.Slot{{ID: 1, Shifted: true}, {ID: 0, Tokens: 9, Hot: 1, Warm: 2, Cold: 3, Remote: 4, Busy: true, LastRestore: now, Restored: 8, Saved: time.Minute}},
			Memory: []telemetry.Memory{{Name: "write queue", Bytes: 5, Limit: 6}, {Name: "index", Bytes: 3}},
		},
	}}
	got := Processes(state, named)
	pages := func(n int) *int { return &n }
	require.Equal(t, Process{
		Model: "weights a", Weights: "a", Engine: "ollama", PID: 7, CacheType: "q8_0", At: now,
		Slots: []Slot{
			{Slot: 0, Tokens: 9, Hot: 1, Warm: pages(2), Cold: pages(3), Remote: pages(4), Busy: true, LastRestore: &now, Restored: 8, SavedSeconds: 60},
			{Slot: 1, Warm: pages(0), Cold: pages(0), Remote: pages(0), Shifted: true},
		},
		Memory: []telemetry.Memory{{Name: "index", Bytes: 3}, {Name: "write queue", Bytes: 5, Limit: 6}},
	}, got[0])
	require.Equal(t, "weights z", got[1].Model)
	require.Equal(t, []Slot{{Hot: 3, Shifted: true, Lossy: true}}, got[1].Slots)
	require.Equal(t, []string{"-", "0", "1,024"}, []string{Pages(nil), Pages(pages(0)), Pages(pages(1024))})
	require.Equal(t, "lossy", got[1].Slots[0].Rows())
	require.Equal(t, []string{"exact", "busy", "shifted", "idle"}, []string{got[0].Slots[0].Rows(), got[0].Slots[0].Now(), got[0].Slots[1].Rows(), got[0].Slots[1].Now()})
}

func TestPaging(t *testing.T) {
	unpaged := &telemetry.Unpaged{Reason: "it has state", Remedy: "lower num_ctx"}
	state := telemetry.State{Processes: []telemetry.ProcessState{
		{Process: telemetry.Process{PID: 1}, Gauges: map[string]float64{"ollama_kv_queue_pages": 1}},
		{Process: telemetry.Process{PID: 2}, Unpaged: unpaged},
		{Process: telemetry.Process{PID: 3}, Gauges: map[string]float64{"ollama_kv_paged_memory_pages": 1200, "ollama_kv_paged_spill_bytes": 3e9}},
		{Process: telemetry.Process{PID: 4}, Gauges: map[string]float64{"ollama_kv_paged_memory_pages": 12, "ollama_kv_paged_video_pages": 5}},
	}}
	got := Processes(state, named)
	require.Equal(t, []*Paged{nil, nil, {1200, 3e9, 0}, {12, 0, 5}}, []*Paged{got[0].Paged, got[1].Paged, got[2].Paged, got[3].Paged})
	require.Equal(t, unpaged, got[1].Unpaged)
	require.Equal(t, []string{
		"", "paged attention is off: it has state; lower num_ctx",
		"paged attention: 1,200 pages of a layer in memory, 3 GB on the spill disk",
		"paged attention: 12 pages of a layer in memory, 0 B on the spill disk, 5 in video memory",
	}, []string{got[0].Paging(), got[1].Paging(), got[2].Paging(), got[3].Paging()})
}

func TestElastic(t *testing.T) {
	state := telemetry.State{Processes: []telemetry.ProcessState{{Elastic: []telemetry.Elastic{{Segment: "kvcached_7_cpu", Used: 3 << 30, Kept: 1 << 20, Limit: 4 << 30}}}}}
	pools := Processes(state, named)[0].Elastic
	require.Len(t, pools, 1)
	require.Equal(t, "elastic memory kvcached_7_cpu: 3.0 GiB in use, 1.0 MiB kept for reuse, 1.0 GiB available of 4.0 GiB", pools[0].Says())
	require.EqualValues(t, 1<<30, pools[0].Available)
}

func TestMisses(t *testing.T) {
	state := telemetry.State{Models: []telemetry.ModelState{{Model: telemetry.Model{Weights: "w", Name: "own"}}}}
	for i := range 5 {
		p := telemetry.StatePrompt{Weights: "w", Prompt: telemetry.Prompt{ID: i, Tokens: 10, Slot: 1, RAM: 2, Computed: 7, Miss: &telemetry.Miss{Cause: telemetry.CauseEvicted, At: 3}}}
		if i == 3 {
			p.Miss = nil
		}
		if i == 2 {
			p.Weights = "v"
		}
		state.Prompts = append(state.Prompts, p)
	}
	got := Misses(state, named, now, 2, func(p telemetry.StatePrompt) bool { return p.Weights == "w" })
	require.Len(t, got, 2)
	require.Equal(t, []int{4, 1}, []int{got[0].Slot, got[1].Slot})
	require.Equal(t, "own", got[0].Model)
	require.Equal(t, []int{10, 1, 2, 7, 3}, []int{got[0].Tokens, got[0].InSlot, got[0].Restored, got[0].Computed, got[0].Position})
}

func TestBusters(t *testing.T) {
	state := telemetry.State{Processes: []telemetry.ProcessState{
		{Busters: []telemetry.Buster{{Begin: 1, Lost: 5}, {Begin: 2, End: 4, Prompts: 3, Lost: 9}}},
		{Model: telemetry.Model{Weights: "other"}, Busters: []telemetry.Buster{{Lost: 100}}},
	}}
	got := Busters(state, named, func(weights string) bool { return weights == "" })
	require.Len(t, got, 2)
	require.Equal(t, Buster{Model: "weights ", Begin: 2, End: 4, Prompts: 3, Lost: 9}, got[0])
}

func TestPart(t *testing.T) {
	// A change of two tokens to one, and the same text behind.
	p := Part(telemetry.Words{Was: []int32{1, 2, 3, 4, 5, 6, 7}, Is: []int32{1, 2, 9, 5, 6, 7, 8}})
	require.Equal(t, Parting{
		Before: []int32{1, 2}, Was: []int32{3, 4}, Is: []int32{9}, AfterWas: []int32{5, 6, 7}, AfterIs: []int32{5, 6, 7, 8},
	}, p)
	// An insertion.
	p = Part(telemetry.Words{Was: []int32{1, 5, 6, 7}, Is: []int32{1, 9, 5, 6, 7}})
	require.Empty(t, p.Was)
	require.Equal(t, []int32{9}, p.Is)
	// They never meet again.
	p = Part(telemetry.Words{Was: []int32{1, 2, 3, 4}, Is: []int32{1, 9, 3, 8}})
	require.Equal(t, []int32{2, 3, 4}, p.Was)
	require.Equal(t, []int32{9, 3, 8}, p.Is)
	require.Equal(t, Parting{}, Part(telemetry.Words{}))

	w := telemetry.Words{Begin: 60, Was: []int32{1, 2, 3, 4, 5}, Is: []int32{1, 8, 3, 4, 5}}
	require.Equal(t, []int32{8, 3}, PartAt(w, 61, 63).Is)
	require.Equal(t, []int32{4, 5}, PartAt(w, 61, 63).AfterIs)
	require.Empty(t, PartAt(w, 0, 10).Is)
	require.Empty(t, PartAt(w, 1<<40, -1<<40).Is)
}

// Nothing of either prompt is lost or made up, wherever they part.
func TestPartsAreTheWhole(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 3), 0, telemetry.WordsMax)
		w := telemetry.Words{Was: tokens.Draw(r, "was"), Is: tokens.Draw(r, "is")}
		p := Part(w)
		join := func(parts ...[]int32) []int32 {
			all := []int32{}
			for _, part := range parts {
				all = append(all, part...)
			}
			return all
		}
		require.Equal(r, w.Was, join(p.Before, p.Was, p.AfterWas))
		require.Equal(r, w.Is, join(p.Before, p.Is, p.AfterIs))
	})
}
