package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
)

var serverChecks = []Check{
	{
		ID: "no-server", Severity: Note, Title: "No Ollama server was found",
		Matters: "Settings of a server were not checked.",
		Means:   "Neither a systemd service, nor a container, nor a process `ollama serve` was found. The directories of your own variables are looked at, and a server may have others.",
		Remedy:  "OLLAMA_KV_TIERING=1 ollama serve  # or: sudo systemctl start ollama",
		judge: func(s *scene, found func(hit)) {
			if len(s.servers) == 0 {
				found(hit{says: "No Ollama server was found: neither a service, nor a container, nor a process."})
			}
		},
	},
	{
		ID: "tiering-off", Severity: Error, Title: "A server runs without OLLAMA_KV_TIERING=1",
		Matters: "Nothing is stored and nothing is restored.",
		Means:   "Set the variable for `ollama serve`. A variable of the shell in which you start `ollama run`, of `.bashrc` or of `/etc/environment` does not reach a service.",
		Remedy:  "{set}",
		judge: func(s *scene, found func(hit)) {
			for _, o := range s.servers {
				stock := slices.ContainsFunc(s.installed, func(i installed) bool { // an installation sets the variable, too
					return i.Executable == o.Executable && i.State == install.None && !i.patched
				})
				set := o.Variables()
				if set == nil || stock || s.settingsOf(o).asked {
					continue
				}
				found(hit{
					says:     fmt.Sprintf("%s has no %s=1, so tiering is off.", o.title(), tieringVar),
					evidence: []Evidence{{tieringVar + " of " + o.title(), shown(set, tieringVar)}},
					values:   []string{"{set}", o.setting(tieringVar, "1")},
				})
			}
		},
	},
	{
		ID: "bad-variable", Severity: Error, Title: "A variable has a value that turns tiering off",
		Matters: "Nothing is stored and nothing is restored.",
		Means:   "`OLLAMA_KV_TIERING` is 1 or 0, budgets are numbers of gigabytes without a unit, shares are three percentages, directories are absolute paths, and an id of a server has letters, digits, dots, hyphens and underscores. With a default in place of such a value pages could be deleted or land in a wrong place.",
		Remedy:  "{set}",
		judge: func(s *scene, found func(hit)) {
			s.eachSettings(func(o server, set settings) {
				for _, b := range set.bad {
					found(hit{
						says:     fmt.Sprintf("%s of %s %s.", b.Variable, o.title(), b.Says),
						evidence: []Evidence{{b.Variable, b.Value}},
						values:   []string{"{set}", o.setting(b.Variable, b.Example)},
					})
				}
			})
		},
	},
	{
		ID: "unknown-variable", Severity: Warning, Title: "A variable looks like one of kvtier's and is none",
		Matters: "Nobody reads it.",
		Means:   "Mostly a typing error, and the setting that you meant has its default. docs/configuration.md lists all variables.",
		Remedy:  "unset {name}  # for a service: sudo systemctl edit {server}",
		judge: func(s *scene, found func(hit)) {
			s.eachSettings(func(o server, set settings) {
				for _, name := range set.unknown {
					found(hit{
						says:     fmt.Sprintf("%s has a variable %s, which nobody reads.", o.title(), name),
						evidence: []Evidence{{name, shown(o.Variables(), name)}},
						values:   []string{"{name}", machine.Quote(name), "{server}", machine.Quote(cmp.Or(o.Name, "ollama.service"))},
					})
				}
			})
		},
	},
	{
		ID: "not-restarted", Severity: Warning, Title: "The service runs with older variables than its configuration",
		Matters: "Your change takes effect with the next start of the service.",
		Means:   "systemd hands variables over when a service starts. A drop-in or an EnvironmentFile that you change later also needs `daemon-reload`.",
		Remedy:  "sudo systemctl daemon-reload && sudo systemctl restart {server}",
		judge: func(s *scene, found func(hit)) {
			for _, o := range s.servers {
				if o.Kind != machine.BySystemd || o.PID == 0 {
					continue
				}
				h := hit{says: fmt.Sprintf("%s runs with older settings than its configuration has.", o.Name), values: []string{"{server}", machine.Quote(o.Name)}}
				if o.Service.Props["NeedDaemonReload"] == "yes" {
					h.evidence = append(h.evidence, Evidence{"NeedDaemonReload", "yes"})
				}
				for _, name := range slices.Sorted(maps.Keys(o.Next)) {
					if o.Set != nil && strings.HasPrefix(name, "OLLAMA_") && value(o.Set, name) != value(o.Next, name) {
						h.evidence = append(h.evidence, Evidence{name, "runs with " + shown(o.Set, name) + ", configured " + shown(o.Next, name)})
					}
				}
				if len(h.evidence) > 0 {
					found(h)
				}
			}
		},
	},
	{
		ID: "container-pages", Severity: Error, Title: "A container keeps its pages outside of its volumes",
		Matters: "All pages are deleted with the container, as by an update of its image.",
		Means:   "Only directories that are mounted into a container outlive it. The image's default, `/root/.ollama/kv-cache`, is in the volume of the models.",
		Remedy:  "docker run --volume ollama:/root/.ollama --env {setting} … {image}",
		judge: func(s *scene, found func(hit)) {
			for _, o := range s.servers {
				set := s.settingsOf(o)
				if o.Kind != machine.ByDocker || !set.on || o.Host(set.Local) != "" {
					continue
				}
				found(hit{
					says:     fmt.Sprintf("The pages of the container %s are not in a volume.", o.Name),
					evidence: []Evidence{{localVar, set.Local}},
					values:   []string{"{setting}", localVar + "=/root/.ollama/kv-cache", "{image}", machine.Quote(o.Image)},
				})
			}
		},
	},
}

// eachSettings calls fn for each server that asks for tiering, or for this shell without any.
func (s *scene) eachSettings(fn func(server, settings)) {
	if len(s.servers) == 0 && s.opt.Root == "" {
		fn(server{Server: machine.Server{Kind: machine.ByHand, Executable: "ollama", Set: s.shell}}, settingsOf(s.shell, s.user.Home))
	}
	for _, o := range s.servers {
		if set := s.settingsOf(o); set.asked {
			fn(o, set)
		}
	}
}

// shown is a variable's value, in words where it has none, or is nothing for others to see: a
// report is shown to people who help.
func shown(set map[string]string, name string) string {
	v, ok := set[name]
	switch {
	case !ok || v == "":
		return "not set"
	case secret(name):
		return "a value that is not shown"
	}
	return userInfo.ReplaceAllString(v, "://…@")
}

// userInfo is the name and the password in a URL.
var userInfo = regexp.MustCompile(`://[^/?#\s]*@`)

// secret reports whether a name is that of a key or a password. Ours are none.
func secret(name string) bool {
	for prefix, ends := range known {
		if end, ok := strings.CutPrefix(name, prefix); ok && slices.Contains(ends, end) {
			return false
		}
	}
	return slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "COOKIE"}, func(word string) bool {
		return strings.Contains(strings.ToUpper(name), word)
	})
}
