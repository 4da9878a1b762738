package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
)

var installChecks = []Check{
	{
		ID: "not-installed", Severity: Error, Title: "An Ollama runs without kvtier",
		Matters: "Nothing is stored there, and kvtier's variables count for nothing.",
		Means:   "From v0.30 on Ollama runs `llama-server`, and kvtier has to stand before it. Releases before need a patched build: docs/install.md.",
		Remedy:  "{cure}",
		judge: func(s *scene, found func(hit)) {
			for _, i := range s.installed {
				if i.State != install.None && i.State != install.Unsupported || i.patched || s.unused(i) {
					continue
				}
				h := hit{
					says:     fmt.Sprintf("Ollama %s in %s runs its own llama-server, without kvtier.", i.Ollama, i.Executable),
					evidence: []Evidence{i.evidence(), {"kvtier ollama status", string(i.State)}},
					values:   []string{"{cure}", i.Cure},
				}
				if i.State == install.Unsupported {
					h.says = fmt.Sprintf("Ollama %s in %s has neither kvtier's patches nor a llama-server.", i.Ollama, i.Executable)
					h.remedy = "make build  # in a clone of kvtier; docs/install.md has the rest"
				}
				found(h)
			}
		},
	},
	{
		ID: "install-attention", Severity: Error, Title: "An installation of kvtier needs attention",
		Matters: "Models may be loaded by Ollama's own llama-server, without tiering.",
		Means:   "An installation was broken off, an update of Ollama took a file's place, a file is missing, or the service runs without tiering. `kvtier ollama status` shows the same.",
		Remedy:  "{cure}",
		judge: func(s *scene, found func(hit)) {
			for _, i := range s.installed {
				if !i.Bad() || i.patched {
					continue
				}
				h := hit{
					says:     fmt.Sprintf("The installation of kvtier for %s is %s, with tiering %s.", i.Executable, i.State, i.Tiering),
					evidence: []Evidence{i.evidence()}, values: []string{"{cure}", cmp.Or(i.Cure, machine.WithSudo("ollama", "status"))},
				}
				for _, hint := range i.Hints {
					h.evidence = append(h.evidence, Evidence{"kvtier ollama status", hint})
				}
				found(h)
			}
		},
	},
	{
		ID: "model-off", Severity: Warning, Title: "The model that was loaded last is not tiered",
		Matters: "Its prompts are computed each time.",
		Means:   "The daemon before llama-server wrote `kv tier: off for this model` to its log, with the reason. docs/llama-server.md lists options and requests that keep a model from being tiered.",
		Remedy:  "sudo grep 'kv tier: o' {log} | tail",
		judge: func(s *scene, found func(hit)) {
			for _, i := range s.installed {
				if !strings.Contains(i.LastLog, `msg="kv tier: off`) {
					continue
				}
				why := "see the log"
				if m := reason.FindStringSubmatch(i.LastLog); m != nil {
					why = strings.Trim(m[1], `"`)
				}
				found(hit{
					says: fmt.Sprintf("The model that %s loaded last is not tiered.", i.Executable), evidence: []Evidence{{i.Log, why}},
					values: []string{"{log}", machine.Quote(i.Log)},
				})
			}
		},
	},
}

func (i installed) evidence() Evidence { return Evidence{i.Executable, "Ollama " + i.Ollama} }

// unused reports whether another installation is the one in use: a packaged Ollama may lie
// beside a patched one.
func (s *scene) unused(i installed) bool {
	runs := func(executable string) bool {
		return slices.ContainsFunc(s.servers, func(o server) bool { return o.Executable == executable })
	}
	return !runs(i.Executable) && slices.ContainsFunc(s.installed, func(o installed) bool { return o.Executable != i.Executable && runs(o.Executable) })
}

// reason matches the reason in a line of a log.
var reason = regexp.MustCompile(`reason=("(?:[^"\\]|\\.)*"|\S+)`)
