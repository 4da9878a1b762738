package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/sizing"
)

// modelChecks look at models, and at the settings that decide whether they are tiered.
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
}

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

// modelCheck finds models of patched servers, each with a reason; "" leaves a model out.
func (s *scene) modelCheck(says string, why func(server, machine.Model) string) (hits []hit) {
	const shownMax = 8
	for _, o := range s.patched() {
		var h hit
		var names []string
		for _, m := range s.models {
			if because := why(o, m); because != "" {
				names = append(names, m.Name)
				if len(h.evidence) < shownMax {
					h.evidence = append(h.evidence, Evidence{m.Name, because})
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		listed := strings.Join(names[:min(len(names), shownMax)], ", ")
		if len(names) > shownMax {
			listed += fmt.Sprintf(" and %d more", len(names)-shownMax)
		}
		h.says = fmt.Sprintf(says, listed)
		h.values = []string{"{model}", quote(names[0]), "{set}", o.setting(newEngineVar, "1")}
		hits = append(hits, h)
	}
	return hits
}

func judgeLlamaRunner(s *scene) []hit {
	return s.modelCheck("Not tiered, because they run on the llama.cpp runner: %s.", func(o server, m machine.Model) string {
		if m.Adapter || !sizing.NeedsNewEngine(m.Architecture) || truth(o.Variables(), newEngineVar) {
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
