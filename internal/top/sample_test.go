package top

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

var now = time.Date(2026, 11, 24, 21, 4, 11, 0, time.UTC)

const (
	mb = 1e6
	gb = 1e9
)

// sample is the state of a server on which one model answers a few conversations.
func sampleState() telemetry.State {
	qwen := telemetry.Model{Weights: "ab12cd34ef56ab12cd34ef56", Name: "qwen3:4b"}
	process := telemetry.Process{PID: 4242, Engine: telemetry.EngineOllama}
	state := telemetry.State{
		Version: telemetry.Version, Root: "/var/lib/ollama-kv", At: now, Since: now.Add(-73 * time.Hour), Live: true,
		Tiers: []telemetry.Tier{
			{Name: "ram", Pages: 61, Bytes: 820 * mb, Booked: 820 * mb, Budget: 2 * gb},
			{Name: "local", Root: "/var/lib/ollama-kv", Pages: 3120, Tails: 44, Bytes: 41.2 * gb, Booked: 41.3 * gb, Budget: 100 * gb, WrittenToday: 6.1 * gb, WriteCap: 50 * gb},
			{Name: "remote", Root: "/mnt/kv", Pages: 9001, Bytes: 120 * gb, Booked: 120 * gb, WrittenToday: 1.2 * gb},
		},
	}
	var meter telemetry.Meter
	for i := range 40 {
		p := telemetry.Prompt{At: now.Add(-time.Duration(40-i) * 41 * time.Second), ID: i % 2, Computed: 20 + 37*(i%11)}
		long := 256 * (1 + (i*i)%61)
		switch i % 5 {
		case 0:
			p.Computed += long
			p.Miss = &telemetry.Miss{Cause: telemetry.CauseNeverSeen}
		case 1:
			p.Slot = long
		case 2:
			p.RAM = long
		case 3:
			p.Remote, p.Local = long/2, 256
			p.Miss = &telemetry.Miss{Cause: telemetry.CauseEvicted, At: 256 + long/2, From: "local", When: now.Add(-2 * time.Hour)}
		default:
			p.Local = long
		}
		p.Tokens = p.Slot + p.RAM + p.Local + p.Remote + p.Computed
		if restored := p.RAM + p.Local + p.Remote; restored > 0 {
			p.Restore = time.Duration(4000+restored*(3+i%3)) * time.Microsecond
			p.Saved = time.Duration(restored) * 1700 * time.Microsecond
		}
		meter.Prompt(p)
		state.Prompts = append(state.Prompts, telemetry.StatePrompt{Prompt: p, Process: process, Weights: qwen.Weights})
	}
	meter.Add("ollama_kv_restored_bytes_total", 12*gb)
	meter.Add("ollama_kv_encoded_bytes_total", 8*gb)
	totals, _ := meter.Read()
	state.Models = []telemetry.ModelState{{Model: qwen, Engine: process.Engine, Totals: totals, LastUsed: now.Add(-41 * time.Second)}}
	state.Processes = []telemetry.ProcessState{{
		Process: process, Model: qwen, Started: now.Add(-time.Hour), At: now,
		Slots: []telemetry.Slot{
			{ID: 1, Tokens: 4410, Hot: 17, Cold: 17, Shifted: true},
			{ID: 0, Tokens: 8210, Hot: 32, Warm: 30, Cold: 33, Remote: 4, Busy: true, LastRestore: now.Add(-9 * time.Second), Restored: 8192, Saved: 74 * time.Second},
		},
		Busters: []telemetry.Buster{{Begin: 61, End: 65, Prompts: 7, Lost: 21_300, Words: &telemetry.Words{Is: []int32{777001}}}},
	}}
	return state
}

// later is the state a few seconds after another.
func later(s telemetry.State, after time.Duration) telemetry.State {
	if len(s.Models) == 0 {
		return s
	}
	m := s.Models[0]
	totals := make(map[string]float64)
	for k, v := range m.Totals {
		totals[k] = v
	}
	n := after.Seconds()
	totals[`ollama_kv_prompt_tokens_total{source="local"}`] += 1204 * n
	totals[`ollama_kv_prompt_tokens_total{source="computed"}`] += 210 * n
	totals["ollama_kv_restored_bytes_total"] += 640 * mb * n
	totals["ollama_kv_encoded_bytes_total"] += 12 * mb * n
	m.Totals = totals
	s.Models = []telemetry.ModelState{m}
	s.At = s.At.Add(after)
	return s
}

// modelOf has a server for each state, the states of five seconds before as well.
func modelOf(states ...telemetry.State) *model {
	m := newModel(context.Background(), Options{Now: func() time.Time { return now }})
	var roots []string
	for _, s := range states {
		roots = append(roots, s.Root)
	}
	m.setRoots(roots)
	for i, s := range states {
		before := later(s, -5*time.Second)
		m.servers[i].take(before, nil)
		m.servers[i].take(s, nil)
	}
	return m
}
