package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/telemetry"
)

// modelChecks look at models, and at the settings that decide whether they are tiered and paged.
var modelChecks = []Check{
	{
		ID: "model-llama-runner", Severity: Warning, Title: "Models run on the llama.cpp runner",
		Matters: "These models are not tiered.",
		Means:   "The patched releases tier Ollama's own engine. `llama` and `qwen2` run on it with `OLLAMA_NEW_ENGINE=1` only.",
		Remedy:  "{set}", Sets: "OLLAMA_NEW_ENGINE=1", judge: judgeLlamaRunner,
	},
	{
		ID: "model-unsupported", Severity: Note, Title: "Models have an architecture or an adapter that is not tiered",
		Matters: "These models run as in a stock Ollama.",
		Means:   "The patched releases tier architectures whose caches are known to hold all of their state; docs/models.md lists them. Embedding models have no cache to keep. Merge a LoRA adapter into the weights.",
		Remedy:  "ollama show {model}", judge: judgeUnsupported,
	},
	{
		ID: "model-unpaged", Severity: Note, Title: "Paged attention is on and a model cannot be paged",
		Matters: "It is loaded without paged attention, if its context fits.",
		Means:   "Paged attention computes flash attention over a model's past, on Ollama's own engine, on CPUs and NVIDIA GPUs. Recurrent state has no pages, and stock libraries lack the operation. The log and `kvtier ps` give the reason for a loaded model.",
		Remedy:  "{journal} | grep 'kv pager: off' | tail", judge: judgeUnpaged,
	},
}

// pagedOp is the operation that the patches add; libraries of the stock release lack it.
const pagedOp = "FLASH_ATTN_EXT_PAGED"

// tieredArchitectures are those of kvcache/tiering; a test compares both.
var tieredArchitectures = []string{
	"deepseek2", "gemma3", "gemma3n", "gemma4", "glm4moelite", "gpt-oss", "gptoss", "lfm2", "llama", "llama4", "mistral3", "mllama",
	"nemotron_h", "olmo3", "qwen2", "qwen3", "qwen35", "qwen3moe", "qwen3next",
}

// patched returns the servers that ask for tiering and run a patched Ollama.
func (s *scene) patched() (all []server) {
	for _, o := range s.servers {
		isPatched := slices.ContainsFunc(s.installed, func(i installed) bool { return i.Executable == o.Executable && i.build.Patched })
		if isPatched && s.settingsOf(o).on {
			all = append(all, o)
		}
	}
	return all
}

// modelHit is a finding about some models of a server, each with a reason; "" leaves a model out.
func (s *scene) modelHit(o server, says string, why func(machine.Model) string) (h hit, ok bool) {
	const shownMax = 8
	var names []string
	for _, m := range s.models {
		if because := why(m); because != "" {
			names = append(names, m.Name)
			if len(h.evidence) < shownMax {
				h.evidence = append(h.evidence, Evidence{m.Name, because})
			}
		}
	}
	if len(names) == 0 {
		return h, false
	}
	listed := strings.Join(names[:min(len(names), shownMax)], ", ")
	if len(names) > shownMax {
		listed += fmt.Sprintf(" and %d more", len(names)-shownMax)
	}
	h.says = fmt.Sprintf(says, listed)
	h.values = []string{"{model}", quote(names[0]), "{set}", o.setting(newEngineVar, "1"), "{journal}", s.journal(o)}
	return h, true
}

// onLlamaRunner reports whether a server runs a model on the llama.cpp runner.
func onLlamaRunner(o server, m machine.Model) bool {
	return sizing.NeedsNewEngine(m.Architecture) && !truth(o.Variables(), newEngineVar)
}

// modelCheck finds models of patched servers, each with a reason.
func (s *scene) modelCheck(says string, why func(server, machine.Model) string) (hits []hit) {
	for _, o := range s.patched() {
		if h, ok := s.modelHit(o, says, func(m machine.Model) string { return why(o, m) }); ok {
			hits = append(hits, h)
		}
	}
	return hits
}

func judgeLlamaRunner(s *scene) []hit {
	return s.modelCheck("Not tiered, because they run on the llama.cpp runner: %s.", func(o server, m machine.Model) string {
		if m.Adapter || !onLlamaRunner(o, m) {
			return ""
		}
		return "architecture " + m.Architecture
	})
}

func judgeUnsupported(s *scene) []hit {
	return s.modelCheck("Not tiered, because of their architecture or an adapter: %s.", func(_ server, m machine.Model) string {
		switch {
		case m.Adapter:
			return "has an adapter"
		case !slices.Contains(tieredArchitectures, m.Architecture):
			return "architecture " + m.Architecture
		}
		return ""
	})
}

// judgeUnpaged goes by the reports of loaded models, and by the architectures of others.
func judgeUnpaged(s *scene) (hits []hit) {
	s.eachState(func(st store, state telemetry.State) {
		for _, p := range state.Processes {
			if p.Unpaged != nil {
				name := cmp.Or(p.Model.Name, p.Model.Architecture, "A model")
				h := s.stateHit(st, name, p.Unpaged.Reason, "Not paged, as its runner says: %s.", name)
				h.evidence = append(h.evidence, Evidence{"next step", p.Unpaged.Remedy})
				hits = append(hits, h)
			}
		}
	})
	for _, o := range s.servers {
		knows := slices.ContainsFunc(s.installed, func(i installed) bool { return i.Executable == o.Executable && i.build.Ops[pagedOp] })
		if !knows || !truth(o.Variables(), pagedVar) {
			continue
		}
		if h, ok := s.modelHit(o, "Not paged, because of their architecture or of the runner that they run on: %s.", func(m machine.Model) string {
			if !sizing.Unpaged(m.Architecture) && !onLlamaRunner(o, m) {
				return ""
			}
			return "architecture " + m.Architecture
		}); ok {
			hits = append(hits, h)
		}
	}
	return hits
}
