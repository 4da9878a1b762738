package page

import (
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// now is the time of the sample states.
var now = time.Date(2026, 11, 24, 21, 4, 11, 0, time.UTC)

const (
	kb = 1e3
	mb = 1e6
	gb = 1e9
)

// sample is the state of a server on which two models answer a few conversations.
func sample(now time.Time) telemetry.State {
	qwen := telemetry.Model{Weights: "ab12cd34ef56ab12cd34ef56", Name: "qwen3:4b", Fingerprint: "f1", PageTokens: 256, TokenBytes: 131 * kb, CacheType: "f16"}
	gemma := telemetry.Model{Weights: "99aa88bb77cc99aa88bb77cc", Fingerprint: "f2", PageTokens: 256, CacheType: "q8_0", Namespace: "team-b"}
	one := telemetry.Process{Boot: "b", PID: 4242, Start: 7, Engine: telemetry.EngineOllama}
	two := telemetry.Process{Boot: "b", PID: 4300, Start: 9, Engine: telemetry.EngineLlama}
	first, second := new(telemetry.Meter), new(telemetry.Meter)
	state := telemetry.State{
		Version: telemetry.Version, Root: "/var/lib/ollama-kv", At: now, Since: now.Add(-73 * time.Hour), Live: true,
		Tiers: []telemetry.Tier{
			{Name: "ram", Pages: 61, Bytes: 820 * mb, Booked: 820 * mb, Budget: 2 * gb},
			{Name: "local", Root: "/var/lib/ollama-kv", Pages: 3120, Tails: 44, Bytes: 41.2 * gb, Booked: 41.3 * gb, Budget: 100 * gb, WrittenToday: 6.1 * gb, WriteCap: 50 * gb},
			{Name: "remote", Root: "/mnt/kv", Pages: 9001, Bytes: 120 * gb, Booked: 120 * gb, Budget: 0, WrittenToday: 1.2 * gb},
		},
	}
	for i := range 64 {
		p := samplePrompt(now, i)
		model, process, meter := qwen, one, first
		if i%5 == 4 {
			model, process, meter = gemma, two, second
		}
		meter.Prompt(p)
		p.Seq = uint64(i + 1)
		state.Prompts = append(state.Prompts, telemetry.StatePrompt{Prompt: p, Process: process, Weights: model.Weights, Namespace: model.Namespace})
	}
	for _, m := range []struct {
		meter *telemetry.Meter
		model telemetry.Model
		of    telemetry.Process
	}{{first, qwen, one}, {second, gemma, two}} {
		totals, _ := m.meter.Read()
		state.Models = append(state.Models, telemetry.ModelState{Model: m.model, Engine: m.of.Engine, Totals: totals, LastUsed: now.Add(-9 * time.Second)})
	}
	state.Processes = []telemetry.ProcessState{
		{
			Process: one, Model: qwen, Started: now.Add(-time.Hour), At: now,
			Slots: []telemetry.Slot{
				{ID: 0, Tokens: 8210, Hot: 32, Warm: 30, Cold: 33, Remote: 4, Busy: true, LastRestore: now.Add(-9 * time.Second), Restored: 8192, Saved: 74 * time.Second},
				{ID: 1, Tokens: 4410, Hot: 17, Cold: 17, Shifted: true},
			},
			Memory: []telemetry.Memory{
				{Name: "RAM tier", Bytes: 820 * mb, Limit: 2 * gb}, {Name: "write queue", Bytes: 31 * mb, Limit: 512 * mb}, {Name: "index of pages", Bytes: 4.2 * mb},
			},
			Busters: []telemetry.Buster{{Begin: 61, End: 65, Prompts: 7, Lost: 21_300, Words: &telemetry.Words{Was: []int32{1}, Is: []int32{2}}}},
		},
		{
			Process: two, Model: gemma, Started: now.Add(-time.Hour), At: now, Slots: []telemetry.Slot{{ID: 0, Tokens: 900, Hot: 3, Cold: 3}},
			Elastic: []telemetry.Elastic{{Segment: "kvcached_8_cuda0", Used: 1.2 * gb, Kept: 64 * mb, Limit: 6 * gb}},
		},
	}
	return state
}

// samplePrompt is the prompt of a number: some are computed, most continue or restore.
func samplePrompt(now time.Time, i int) telemetry.Prompt {
	p := telemetry.Prompt{At: now.Add(-time.Duration(64-i) * 41 * time.Second), ID: i % 2, Computed: 20 + 37*(i%11)}
	long := 256 * (1 + (i*i)%61)
	switch i % 8 {
	case 0:
		p.Computed += long
		p.Miss = &telemetry.Miss{Cause: telemetry.CauseNeverSeen}
	case 1:
		p.Computed += long / 2
		p.Slot = 61
		p.Miss = &telemetry.Miss{
			Cause: telemetry.CauseDiffers, At: 61,
			Words: &telemetry.Words{Begin: 60, Was: []int32{777001}, Is: []int32{777002}},
		}
	case 2, 3:
		p.Slot = long
	case 4:
		p.RAM = long
	case 7:
		p.Remote, p.Local, p.Computed = long/2, 256, p.Computed+long/3
		p.Miss = &telemetry.Miss{Cause: telemetry.CauseEvicted, At: 256 + long/2, From: "local", When: now.Add(-125 * time.Minute)}
	default:
		p.Local = long
	}
	p.Tokens = p.Slot + p.RAM + p.Local + p.Remote + p.Computed
	if restored := p.RAM + p.Local + p.Remote; restored > 0 {
		p.Restore = time.Duration(4000+restored*(3+9*(p.Remote/max(1, restored/2))+i%3)) * time.Microsecond
		p.Saved = time.Duration(restored)*1700*time.Microsecond - p.Restore
	}
	p.Took = p.Restore + time.Duration(p.Computed)*1700*time.Microsecond
	return p
}
