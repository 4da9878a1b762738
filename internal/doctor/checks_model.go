package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/telemetry"
)

// memoryChecks look at the memory tier.
var memoryChecks = []Check{
	{
		ID: "swap-with-ram-tier", Severity: Warning, Title: "Memory is swapped while pages are kept in memory",
		Matters: "A page that was swapped is read from a disk, so the memory tier only costs memory.",
		Means:   "`OLLAMA_KV_TIER_RAM_GB` keeps pages in memory, and this machine has moved memory to swap or zram.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIER_RAM_GB=GB", judge: judgeSwap,
	},
	{
		ID: "ram-too-large", Severity: Warning, Title: "The memory tier is larger than the memory that is available",
		Matters: "Models are unloaded, or the system ends processes.",
		Means:   "`OLLAMA_KV_TIER_RAM_GB` is taken beside models. Uncompressed pages of a local disk stay in the page cache anyhow.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIER_RAM_GB=GB", judge: judgeRAM,
	},
}

// eachRAM calls fn for each store with a memory tier.
func (s *scene) eachRAM(fn func(st store, h hit)) {
	for _, st := range s.stores {
		if st.ramBytes > 0 {
			half := max(1, s.hardware.available/2/env.BytesPerGB)
			fn(st, hit{evidence: []Evidence{{ramVar, bytesText(st.ramBytes)}}, values: []string{"{set}", s.by(st).setting(ramVar, fmt.Sprint(min(half, st.ramBytes/env.BytesPerGB/2)))}})
		}
	}
}

func judgeSwap(s *scene) (hits []hit) {
	s.eachRAM(func(_ store, h hit) {
		const least = 64 << 20 // a little is always swapped
		for _, swap := range s.hardware.swaps {
			if swap.used > least {
				h.evidence = append(h.evidence, Evidence{swap.name, bytesText(swap.used) + " in use"})
			}
		}
		if h.says = "Memory is swapped while pages are kept in memory."; len(h.evidence) > 1 {
			hits = append(hits, h)
		}
	})
	return hits
}

func judgeRAM(s *scene) (hits []hit) {
	s.eachRAM(func(st store, h hit) {
		if s.hardware.available > 0 && st.ramBytes > s.hardware.available {
			h.says = "The memory tier may take more memory than is available."
			h.evidence = append(h.evidence, Evidence{"MemAvailable", bytesText(s.hardware.available)})
			hits = append(hits, h)
		}
	})
	return hits
}

// modelChecks look at models, and at the settings that decide whether they are tiered.
var modelChecks = []Check{
	{
		ID: "flash-attention-off", Severity: Warning, Title: "Flash attention is turned off",
		Matters: "V is laid out by columns, so storing and restoring copy it in small pieces, and the cache is always f16 in the patched releases.",
		Means:   "`OLLAMA_FLASH_ATTENTION=0` turns flash attention off for all models. Pages with and without it are not exchanged.",
		Remedy:  "{set}", Sets: "OLLAMA_FLASH_ATTENTION=1", judge: judgeFlash,
	},
	{
		ID: "paged-no-flash", Severity: Warning, Title: "Paged attention is on and flash attention is off",
		Matters: "No model is paged: models are loaded as without it, and contexts that do not fit in memory are not.",
		Means:   "Paged attention takes the place of flash attention. `OLLAMA_PAGED_ATTN=1` turns flash attention on, unless `OLLAMA_FLASH_ATTENTION` turns it off.",
		Remedy:  "{set}", Sets: "OLLAMA_FLASH_ATTENTION=1", judge: judgePaged,
	},
	{
		ID: "paged-libraries", Severity: Warning, Title: "Paged attention is on and the libraries lack it",
		Matters: "No model is paged: models are loaded as without it, and contexts that do not fit in memory are not.",
		Means:   "The patches add an operation to ggml. Libraries of the stock release, which serve for all else, lack it.",
		Remedy:  "make build && sudo cp -r build/ollama/bin build/ollama/lib {prefix}", judge: judgePagedLibraries,
	},
	{
		ID: "model-unpaged", Severity: Note, Title: "Paged attention is on and a model cannot be paged",
		Matters: "It is loaded as without paged attention, and a context that does not fit in memory is not.",
		Means:   "Paged attention computes flash attention over a model's past, on Ollama's own engine, on CPUs and NVIDIA GPUs. Recurrent state has no pages. The log and `kvtier ps` give the reason for a loaded model.",
		Remedy:  "{journal} | grep 'kv pager: off' | tail", judge: judgeUnpaged,
	},
	{
		ID: "model-llama-runner", Severity: Warning, Title: "Models run on the llama.cpp runner",
		Matters: "These models are not tiered.",
		Means:   "The patched releases tier Ollama's own engine. `llama` and `qwen2` run on it with `OLLAMA_NEW_ENGINE=1` only.",
		Remedy:  "{set}", Sets: "OLLAMA_NEW_ENGINE=1", judge: judgeLlamaRunner,
	},
	{
		ID: "model-adapter", Severity: Note, Title: "Models have adapters",
		Matters: "These models are not tiered.",
		Means:   "Models with LoRA adapters are not tiered by the patched releases. Merge the adapter into the weights.",
		Remedy:  "ollama show --modelfile {model}", judge: judgeAdapters,
	},
	{
		ID: "model-unsupported", Severity: Note, Title: "Models have an architecture that is not tiered",
		Matters: "These models run as in a stock Ollama.",
		Means:   "The patched releases tier architectures whose caches are known to hold all of their state. docs/models.md lists them; embedding models have no cache to keep.",
		Remedy:  "ollama show {model}", judge: judgeArchitectures,
	},
	{
		ID: "model-off", Severity: Warning, Title: "The model that was loaded last is not tiered",
		Matters: "Its prompts are computed each time.",
		Means:   "The daemon before llama-server wrote `kv tier: off for this model` to its log, with the reason. docs/llama-server.md lists options and requests that keep a model from being tiered.",
		Remedy:  "sudo grep 'kv tier: o' {log} | tail", judge: judgeModelOff,
	},
}

// patched returns the servers that ask for tiering and run a patched Ollama.
func (s *scene) patched() (all []server) {
	for _, o := range s.servers {
		isPatched := slices.ContainsFunc(s.installed, func(i installed) bool { return i.Executable == o.exe && i.build.Patched })
		if isPatched && s.settingsOf(o).on {
			all = append(all, o)
		}
	}
	return all
}

// flashOff reports whether a server's variables turn flash attention off.
func flashOff(o server) bool {
	return value(o.variables(), flashVar) != "" && !truth(o.variables(), flashVar)
}

func flashHit(o server, says string) hit {
	return hit{says: says, evidence: []Evidence{{flashVar + " of " + o.title(), shown(o.variables(), flashVar)}}, values: []string{"{set}", o.setting(flashVar, "1")}}
}

func judgeFlash(s *scene) (hits []hit) {
	for _, o := range s.servers {
		if s.settingsOf(o).on && flashOff(o) && !truth(o.variables(), pagedVar) {
			hits = append(hits, flashHit(o, fmt.Sprintf("%s has flash attention turned off.", capital(o.title()))))
		}
	}
	return hits
}

func judgePaged(s *scene) (hits []hit) {
	for _, o := range s.servers {
		if truth(o.variables(), pagedVar) && flashOff(o) {
			h := flashHit(o, fmt.Sprintf("%s has paged attention turned on and flash attention turned off.", capital(o.title())))
			h.evidence = append(h.evidence, Evidence{pagedVar, shown(o.variables(), pagedVar)})
			hits = append(hits, h)
		}
	}
	return hits
}

func judgePagedLibraries(s *scene) (hits []hit) {
	for _, o := range s.servers {
		for _, i := range s.installed {
			if i.Executable != o.exe || !truth(o.variables(), pagedVar) || len(i.baseOps) == 0 || !i.build.Ops[pagedOp] || slices.Contains(i.baseOps, pagedOp) {
				continue
			}
			hits = append(hits, hit{
				says:     fmt.Sprintf("%s has paged attention turned on, and its libraries lack it.", capital(o.title())),
				evidence: []Evidence{{pagedVar, shown(o.variables(), pagedVar)}, {baseLibrary, "has no " + pagedOp}},
				values:   []string{"{prefix}", quote(prefixOf(i.Executable))},
			})
		}
	}
	return hits
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
		knows := slices.ContainsFunc(s.installed, func(i installed) bool { return i.Executable == o.exe && i.build.Ops[pagedOp] })
		if !knows || !truth(o.variables(), pagedVar) {
			continue
		}
		if h, ok := s.modelHit(o, "Not paged, because of their architecture or of the runner that they run on: %s.", func(m model) bool {
			return sizing.Unpaged(m.architecture) || sizing.NeedsNewEngine(m.architecture) && !truth(o.variables(), newEngineVar)
		}); ok {
			h.values = append(h.values, "{journal}", s.journal(o))
			hits = append(hits, h)
		}
	}
	return hits
}

// reason matches the reason in a line of a log.
var reason = regexp.MustCompile(`reason=("(?:[^"\\]|\\.)*"|\S+)`)

func judgeModelOff(s *scene) (hits []hit) {
	for _, i := range s.installed {
		if !strings.Contains(i.LastLog, `msg="kv tier: off`) {
			continue
		}
		why := "see the log"
		if found := reason.FindStringSubmatch(i.LastLog); found != nil {
			why = strings.Trim(found[1], `"`)
		}
		hits = append(hits, hit{
			says: fmt.Sprintf("The model that %s loaded last is not tiered.", i.Executable), evidence: []Evidence{{i.Log, why}},
			values: []string{"{log}", quote(i.Log)},
		})
	}
	return hits
}

// modelHit is a finding about some models of a server.
func (s *scene) modelHit(o server, says string, of func(model) bool) (h hit, ok bool) {
	const shownMax = 8
	var names []string
	for _, m := range s.models {
		if of(m) {
			names = append(names, m.name)
			if len(h.evidence) < shownMax {
				h.evidence = append(h.evidence, Evidence{m.name, "architecture " + m.architecture})
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
	h.values = []string{"{model}", quote(names[0]), "{set}", o.setting(newEngineVar, "1")}
	return h, true
}

func (s *scene) modelCheck(says string, of func(server, model) bool) (hits []hit) {
	for _, o := range s.patched() {
		if h, ok := s.modelHit(o, says, func(m model) bool { return of(o, m) }); ok {
			hits = append(hits, h)
		}
	}
	return hits
}

func judgeLlamaRunner(s *scene) []hit {
	return s.modelCheck("Not tiered, because they run on the llama.cpp runner: %s.", func(o server, m model) bool {
		return !m.adapter && sizing.NeedsNewEngine(m.architecture) && !truth(o.variables(), newEngineVar)
	})
}

func judgeAdapters(s *scene) []hit {
	return s.modelCheck("Not tiered, because they have adapters: %s.", func(_ server, m model) bool { return m.adapter })
}

func judgeArchitectures(s *scene) []hit {
	return s.modelCheck("Not tiered, because of their architecture: %s.", func(_ server, m model) bool {
		return !m.adapter && !slices.Contains(tieredArchitectures, m.architecture)
	})
}
