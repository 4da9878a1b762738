package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// spaceChecks look at the room for pages, and at their files.
var spaceChecks = []Check{
	{
		ID: "disk-full", Severity: Error, Title: "A disk has no room for another page",
		Matters: "No page can be stored there.",
		Means:   "Less than a page's room is free. A budget does not help against files of others on the same disk.",
		Remedy:  "df -h {path}; sudo du -xhd1 {point} | sort -h | tail",
		judge: func(s *scene, found func(hit)) {
			s.eachDisk(func(st store, p *place) {
				if p.full() {
					found(s.placeHit(st, p, p.above, p.room(), "The disk of %s is full.", p.title()))
				}
			})
		},
	},
	{
		ID: "budget-over-disk", Severity: Warning, Title: "A budget is larger than the disk allows",
		Matters: "The disk is full before the budget is reached, so pages are evicted early.",
		Means:   "The budget is more than the pages that are stored and the bytes that are free together.",
		Remedy:  "{set}",
		judge: func(s *scene, found func(hit)) {
			s.eachDisk(func(st store, p *place) {
				budget, room := st.budget(p.tier), p.disk.Free+p.stored()
				nobodys := !st.settings.given && p.tier == telemetry.PlaceLocal && len(st.servers) == 0 && s.opt.Root == ""
				if st.Split != nil || nobodys || budget <= room || p.full() {
					return
				}
				const share = .8 // of the room that there is
				gb := max(1, int64(share*float64(room)/env.BytesPerGB))
				found(s.placeHit(st, p, "budget", format.HumanBytes(budget), "The budget of %s is more than its disk has room for.", p.title()).
					also(p.above, p.room()+", "+format.HumanBytes(p.stored())+" in pages").with("{set}", s.by(st).setting(variableOf(p.tier)+"_GB", fmt.Sprint(gb))))
			})
		},
	},
	{
		ID: "quarantine", Severity: Warning, Title: "Damaged files were set aside",
		Matters: "A disk, a cable or memory may be failing.",
		Means:   "A page that fails its check twice is moved to `v1/quarantine` for you to look at, and computed again. One in years is a flipped bit.",
		Remedy:  "{kvtier} check --root {path}; sudo smartctl -a {source}",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				if p.contents.quarantined == 0 {
					return
				}
				m, _ := machine.MountOf(s.Mounted, p.above)
				found(s.placeHit(st, p, p.path+"/v1/quarantine", plural(p.contents.quarantined, "file"), "%s has damaged files in quarantine.", p.title()).
					with("{source}", machine.Quote(cmp.Or(m.Source, "/dev/sda"))))
			})
		},
	},
}

// fullBytes is the size of a page of a large model.
const fullBytes = 256 << 20

// eachDisk calls fn for each directory whose filesystem is known.
func (s *scene) eachDisk(fn func(st store, p *place)) {
	s.eachPlace(func(st store, p *place) {
		if p.diskErr == nil && p.disk.Total > 0 {
			fn(st, p)
		}
	})
}

func (p *place) room() string {
	return fmt.Sprintf("%s free of %s", format.HumanBytes(p.disk.Free), format.HumanBytes(p.disk.Total))
}

// full reports a disk without room for a page.
func (p *place) full() bool { return p.disk.Free < min(fullBytes, p.disk.Total/10) }

// stored are the bytes of pages below a directory, as far as they were counted.
func (p *place) stored() int64 {
	if p.contents.ledger == nil {
		return 0
	}
	return max(0, p.contents.ledger.Bytes)
}

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
