package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/llamatier/install"
)

// installChecks look at the programs and libraries of Ollama.
var installChecks = []Check{
	{
		ID: "not-installed", Severity: Error, Title: "A stock Ollama runs without kvtier",
		Matters: "Variables of kvtier count for nothing there.",
		Means:   "From v0.30 on Ollama runs `llama-server`, and `kvtier-llama-server` has to stand before it.",
		Remedy:  "sudo kvtier ollama install --prefix {prefix}", judge: judgeNotInstalled,
	},
	{
		ID: "install-attention", Severity: Error, Title: "An installation of kvtier needs attention",
		Matters: "Models may be loaded by Ollama's own llama-server, without tiering.",
		Means:   "An installation was broken off, an update of Ollama took a file's place, a file is missing, or the service runs without tiering. `kvtier ollama status` shows the same.",
		Remedy:  "sudo kvtier ollama status; sudo kvtier ollama install", judge: judgeAttention,
	},
	{
		ID: "not-patched", Severity: Error, Title: "This Ollama has no kvtier and cannot get it by an installation",
		Matters: "Variables of kvtier count for nothing there.",
		Means:   "Releases before v0.30 need a patched build, and later ones a `llama-server` beside Ollama.",
		Remedy:  "make build  # in a clone of kvtier; docs/install.md has the rest", judge: judgeNotPatched,
	},
	{
		ID: "cpu-only", Severity: Warning, Title: "There is an NVIDIA GPU, and Ollama has libraries for the CPU only",
		Matters: "Prompts and answers are computed on the CPU.",
		Means:   "The folder `lib/ollama` beside the program has no `libggml-cuda`. A build makes it where `nvcc` is found; a packaged Ollama of the same release has it, too.",
		Remedy:  "ls {folder}; command -v nvcc && make build", judge: judgeCPUOnly,
	},
	{
		ID: "other-libraries", Severity: Error, Title: "The libraries beside Ollama are of another release",
		Matters: "The program and its libraries number the operations of ggml differently, so models fail or give wrong output.",
		Means:   "The program has a copy of ggml's core, and `libggml-base` in `lib/ollama` has another one. Their lists of operations differ.",
		Remedy:  "make build && sudo cp -r build/ollama/bin build/ollama/lib {prefix}", judge: judgeOtherLibraries,
	},
	{
		ID: "libraries-replaced", Severity: Warning, Title: "Libraries were replaced under a running server",
		Matters: "The models that are loaded use the old libraries, and the next ones the new libraries, with pages of their own.",
		Means:   "An update replaced files in `lib/ollama`, and Ollama was not started again after it.",
		Remedy:  "{restart}", judge: judgeReplaced,
	},
	{
		ID: "kvtier-old", Severity: Error, Title: "The directory has pages of a newer kvtier",
		Matters: "This program does not read them, and a server of this version computes their prompts again.",
		Means:   "Newer versions may keep pages in a folder such as `v2`, or write manifests with a higher schema, or counters of another version. Older programs leave these alone.",
		Remedy:  "kvtier --version; kvtier ollama status  # then install the newest of both", judge: judgeOld,
	},
	{
		ID: "other-kvtier", Severity: Note, Title: "kvtier-llama-server has another version than kvtier",
		Matters: "One of both may not know variables, pages or counters of the other.",
		Means:   "Both come from one build. `kvtier ollama install` puts the one that lies beside `kvtier` before llama-server.",
		Remedy:  "sudo kvtier ollama install --prefix {prefix}", judge: judgeOtherKvtier,
	},
}

// prefixOf is the folder above bin/ollama.
func prefixOf(executable string) string { return filepath.Dir(filepath.Dir(executable)) }

func (i installed) evidence() Evidence { return Evidence{i.Executable, "Ollama " + i.Ollama} }

func judgeNotInstalled(s *scene) (hits []hit) {
	for _, i := range s.installed {
		if i.State != install.None || i.build.Patched || s.unused(i) {
			continue
		}
		remedy := ""
		if i.Service != "" {
			remedy = "sudo kvtier ollama install --service " + quote(i.Service)
		}
		hits = append(hits, hit{
			says:     fmt.Sprintf("Ollama %s in %s runs its own llama-server, without kvtier.", i.Ollama, i.Executable),
			evidence: []Evidence{i.evidence(), {"kvtier ollama status", string(i.State)}},
			values:   []string{"{prefix}", quote(prefixOf(i.Executable))}, remedy: remedy,
		})
	}
	return hits
}

// unused reports whether another installation is the one in use: a packaged Ollama may lie
// beside a patched one.
func (s *scene) unused(i installed) bool {
	runs := func(executable string) bool {
		return slices.ContainsFunc(s.servers, func(o server) bool { return o.exe == executable })
	}
	return !runs(i.Executable) && slices.ContainsFunc(s.installed, func(o installed) bool { return o.Executable != i.Executable && runs(o.Executable) })
}

func judgeAttention(s *scene) (hits []hit) {
	for _, i := range s.installed {
		if !i.Bad() || i.build.Patched {
			continue
		}
		h := hit{
			says:     fmt.Sprintf("The installation of kvtier for %s is %s, with tiering %s.", i.Executable, i.State, i.Tiering),
			evidence: []Evidence{i.evidence()},
		}
		for _, hint := range i.Hints {
			h.evidence = append(h.evidence, Evidence{"kvtier ollama status", hint})
		}
		if i.Service != "" {
			h.remedy = "sudo kvtier ollama status; sudo kvtier ollama install --service " + quote(i.Service)
		}
		hits = append(hits, h)
	}
	return hits
}

func judgeNotPatched(s *scene) (hits []hit) {
	for _, i := range s.installed {
		if i.State != install.Unsupported || i.build.Patched || s.unused(i) {
			continue
		}
		hits = append(hits, hit{
			says:     fmt.Sprintf("Ollama %s in %s has neither kvtier's patches nor a llama-server.", i.Ollama, i.Executable),
			evidence: []Evidence{i.evidence()},
		})
	}
	return hits
}

func judgeCPUOnly(s *scene) (hits []hit) {
	cuda := func(file string) bool { return strings.Contains(file, "cuda") }
	for _, i := range s.installed {
		if len(s.hardware.gpus) == 0 || len(i.libraries) == 0 || slices.ContainsFunc(i.libraries, cuda) || s.unused(i) {
			continue
		}
		folder := filepath.Dir(i.libraries[0])
		hits = append(hits, hit{
			says:     fmt.Sprintf("This machine has %s, and the libraries of %s are for the CPU alone.", s.hardware.gpus[0], i.Executable),
			evidence: []Evidence{{s.hardware.gpus[0], "present"}, {folder, plural(len(i.libraries), "file") + " of ggml, none for CUDA"}},
			values:   []string{"{folder}", quote(folder)},
		})
	}
	return hits
}

func judgeOtherLibraries(s *scene) (hits []hit) {
	for _, i := range s.installed {
		if len(i.baseOps) == 0 || len(i.build.Ops) == 0 {
			continue
		}
		var differ []string
		for _, op := range i.baseOps {
			if !i.build.Ops[op] {
				differ = append(differ, op+" is in the library alone")
			}
		}
		for _, op := range surelyOps {
			if i.build.Ops[op] && !slices.Contains(i.baseOps, op) {
				differ = append(differ, op+" is in the program alone")
			}
		}
		if len(differ) == 0 {
			continue
		}
		hits = append(hits, hit{
			says:     fmt.Sprintf("%s and the libraries beside it are of different releases.", i.Executable),
			evidence: []Evidence{{baseLibrary, strings.Join(differ[:min(len(differ), 4)], ", ")}},
			values:   []string{"{prefix}", quote(prefixOf(i.Executable))},
		})
	}
	return hits
}

// restart is the command that starts a server again.
func (s server) restart() string {
	switch s.kind {
	case bySystemd:
		return "sudo systemctl restart " + quote(s.name)
	case byDocker:
		return "docker restart " + quote(s.name)
	}
	return fmt.Sprintf("%skill %d && %s%s serve", s.as, s.pid, s.as, quote(s.exe))
}

func judgeReplaced(s *scene) (hits []hit) {
	for _, o := range s.servers {
		for _, r := range o.runners {
			if len(r.deleted) == 0 {
				continue
			}
			hits = append(hits, hit{
				says:     fmt.Sprintf("Process %d of %s uses libraries that were replaced since it started.", r.pid, o.title()),
				evidence: []Evidence{{fmt.Sprintf("/proc/%d/maps", r.pid), r.deleted[0] + " (deleted)"}},
				values:   []string{"{restart}", o.restart()},
			})
			break
		}
	}
	return hits
}

func judgeOtherKvtier(s *scene) (hits []hit) {
	for _, i := range s.installed {
		if i.State != install.Installed || i.Kvtier == "" || s.opt.Version == "" || i.Kvtier == s.opt.Version {
			continue
		}
		remedy := ""
		if i.Service != "" {
			remedy = "sudo kvtier ollama install --service " + quote(i.Service)
		}
		hits = append(hits, hit{
			says:     fmt.Sprintf("The kvtier-llama-server for %s is %s, and this kvtier is %s.", i.Executable, i.Kvtier, s.opt.Version),
			evidence: []Evidence{{"kvtier-llama-server", i.Kvtier}, {"kvtier", s.opt.Version}},
			values:   []string{"{prefix}", quote(prefixOf(i.Executable))}, remedy: remedy,
		})
	}
	return hits
}

func judgeOld(s *scene) (hits []hit) {
	for _, st := range s.stores {
		for _, p := range st.places() {
			for _, path := range p.contents.newer {
				hits = append(hits, hit{says: fmt.Sprintf("%s is of a newer version of kvtier than this one.", path), evidence: []Evidence{{path, "newer than version 1"}}})
			}
		}
	}
	return hits
}
