package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/llamatier/install"
)

// serverChecks look at the variables that servers see.
var serverChecks = []Check{
	{
		ID: "no-server", Severity: Note, Title: "No Ollama server was found",
		Matters: "The directories of this user's variables are looked at, and a server may have others.",
		Means:   "Neither a systemd service, nor a container, nor a process `ollama serve` was found. Findings about the variables of a server need one.",
		Remedy:  "ollama serve  # or: sudo systemctl start ollama", judge: judgeNoServer,
	},
	{
		ID: "server-unseen", Severity: Note, Title: "This user may not see the server's variables",
		Matters: "Variables that were changed since the server started are not noticed.",
		Means:   "The variables of a running process are in `/proc/PID/environ`, which its own user and root may read. Without them doctor goes by the configuration of systemd, or by nothing.",
		Remedy:  "sudo kvtier doctor", judge: judgeUnseen,
	},
	{
		ID: "tiering-off", Severity: Error, Title: "A server runs without OLLAMA_KV_TIERING=1",
		Matters: "Nothing is stored and nothing is restored.",
		Means:   "Tiering is off unless `OLLAMA_KV_TIERING=1` is among the variables of the server. A stock Ollama prints no line about it.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIERING=1", judge: judgeOff,
	},
	{
		ID: "only-client", Severity: Error, Title: "Tiering is set for the shell and not for the server",
		Matters: "A variable of the shell in which `ollama run` is started reaches the client alone, so nothing is stored.",
		Means:   "`OLLAMA_KV_TIERING` counts in the environment of `ollama serve`. A service does not see variables of `.bashrc` or of `/etc/environment`.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIERING=1", judge: judgeOnlyClient,
	},
	{
		ID: "bad-switch", Severity: Error, Title: "OLLAMA_KV_TIERING is neither true nor false",
		Matters: "Tiering stays off.",
		Means:   "`1` and `true` turn tiering on; a word such as `yes` does not.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIERING=1", judge: judgeBadSwitch,
	},
	{
		ID: "bad-variable", Severity: Error, Title: "A variable has a value that turns tiering off",
		Matters: "Tiering stays off, because the default of this variable could delete pages or put them in a wrong place.",
		Means:   "Budgets are numbers of gigabytes without a unit, directories are absolute paths, and an id of a server has letters, digits, dots, hyphens and underscores.",
		Remedy:  "{set}", Sets: "VARIABLE=VALUE", judge: judgeBadVariable,
	},
	{
		ID: "value-ignored", Severity: Warning, Title: "A variable has a value that counts for nothing",
		Matters: "The default is used in its place.",
		Means:   "The server's log has a line `invalid environment variable, using default` for each such value.",
		Remedy:  "{set}", Sets: "VARIABLE=VALUE", judge: judgeIgnored,
	},
	{
		ID: "unknown-variable", Severity: Warning, Title: "A variable looks like one of kvtier's and is none",
		Matters: "Nobody reads it, so the setting that it was meant for has its default.",
		Means:   "Mostly a typing error. docs/configuration.md lists all variables.",
		Remedy:  "unset {name}  # for a service: sudo systemctl edit {server}", judge: judgeUnknown,
	},
	{
		ID: "variables-differ", Severity: Warning, Title: "The shell and the server have different directories",
		Matters: "The verbs of `kvtier` look at other pages than the server uses.",
		Means:   "`kvtier` finds pages by the variables of the shell that it runs in. A variable of the shell with another value than the server's leads it to another directory or another budget.",
		Remedy:  "unset {name}", judge: judgeDiffer,
	},
	{
		ID: "not-restarted", Severity: Warning, Title: "The service runs with older variables than its configuration",
		Matters: "A change takes effect with the next start of the service.",
		Means:   "systemd hands variables over when a service starts. A drop-in or an EnvironmentFile that is changed later also needs `daemon-reload`.",
		Remedy:  "sudo systemctl daemon-reload && sudo systemctl restart {server}", judge: judgeNotRestarted,
	},
	{
		ID: "environment-file", Severity: Warning, Title: "An EnvironmentFile of the service cannot be read",
		Matters: "Its variables do not reach the server.",
		Means:   "systemd starts a service without a file whose name has a minus before it, and says nothing.",
		Remedy:  "ls -l {file}; systemctl cat {server}", judge: judgeEnvFile,
	},
	{
		ID: "wrong-user", Severity: Note, Title: "This is not the server's user",
		Matters: "Pages can be read by their owner alone, so some things could not be looked at.",
		Means:   "`kvtier ls`, `stat`, `check` and the other verbs about pages need the server's user, too. A verb that root runs may leave files that the server cannot remove.",
		Remedy:  "sudo -u {user} kvtier doctor", judge: judgeWrongUser,
	},
	{
		ID: "other-ollama", Severity: Warning, Title: "The ollama in PATH is not the one that the server runs",
		Matters: "A server that is started from the shell is another build: it has pages of its own, or none.",
		Means:   "Mostly a patched build lies beside a packaged one. The client may be either; the server must be the one with kvtier.",
		Remedy:  "{exe} --version; ls -l {other}", judge: judgeOtherOllama,
	},
	{
		ID: "container-pages", Severity: Error, Title: "A container keeps its pages outside of its volumes",
		Matters: "All pages are deleted with the container, as by an update of its image.",
		Means:   "Only directories that are mounted into a container outlive it. The image's default, `/root/.ollama/kv-cache`, is in the volume of the models.",
		Remedy:  "docker run --volume ollama:/root/.ollama --env {setting} … {image}", judge: judgeContainer,
	},
}

func judgeNoServer(s *scene) []hit {
	if len(s.servers) > 0 {
		return nil
	}
	return []hit{{says: "No Ollama server was found: neither a service, nor a container, nor a process."}}
}

func judgeUnseen(s *scene) (hits []hit) {
	for _, o := range s.servers {
		if o.pid > 0 && o.set == nil {
			hits = append(hits, hit{
				says:     fmt.Sprintf("The variables of %s cannot be seen by this user.", o.title()),
				evidence: []Evidence{{fmt.Sprintf("/proc/%d/environ", o.pid), "no permission"}},
			})
		}
	}
	return hits
}

// withoutTiering lists the servers whose variables are known and do not ask for tiering.
func (s *scene) withoutTiering() (all []server) {
	for _, o := range s.servers {
		stock := slices.ContainsFunc(s.installed, func(i installed) bool { // an installation sets the variable, too
			return i.Executable == o.exe && i.State == install.None && !i.build.Patched
		})
		if set := o.variables(); set != nil && !stock && !s.settingsOf(o).asked {
			all = append(all, o)
		}
	}
	return all
}

func (s *scene) shellTiers() bool { return truth(s.shell, tieringVar) }

func judgeOff(s *scene) (hits []hit) {
	if s.shellTiers() {
		return nil // only-client says more
	}
	for _, o := range s.withoutTiering() {
		hits = append(hits, offHit(o, fmt.Sprintf("%s has no %s=1, so tiering is off.", capital(o.title()), tieringVar)))
	}
	return hits
}

func offHit(o server, says string) hit {
	return hit{says: says, evidence: []Evidence{{tieringVar + " of " + o.title(), shown(o.variables(), tieringVar)}}, values: []string{"{set}", o.setting(tieringVar, "1")}}
}

func judgeOnlyClient(s *scene) (hits []hit) {
	if !s.shellTiers() {
		return nil
	}
	for _, o := range s.withoutTiering() {
		h := offHit(o, fmt.Sprintf("%s is set for this shell, and %s does not have it.", tieringVar, o.title()))
		h.evidence = append(h.evidence, Evidence{tieringVar + " of this shell", shown(s.shell, tieringVar)})
		hits = append(hits, h)
	}
	return hits
}

func judgeBadSwitch(s *scene) (hits []hit) {
	for _, o := range s.servers {
		if set := s.settingsOf(o); set.asked && !set.on {
			hits = append(hits, offHit(o, fmt.Sprintf("%s of %s is neither 1 nor 0.", tieringVar, o.title())))
		}
	}
	return hits
}

// eachSettings calls fn for each server that asks for tiering, or for this shell without any.
func (s *scene) eachSettings(fn func(server, settings)) {
	if len(s.servers) == 0 && s.opt.Root == "" {
		fn(server{kind: byHand, exe: "ollama", set: s.shell}, settingsOf(s.shell, s.user.Home))
	}
	for _, o := range s.servers {
		if set := s.settingsOf(o); set.asked {
			fn(o, set)
		}
	}
}

// whose names the owner of variables.
func whose(o server) string {
	if o.pid == 0 && o.kind == byHand {
		return "this shell"
	}
	return o.title()
}

func badHit(o server, b badValue) hit {
	example := map[string]string{"a number of gigabytes": "20", "an absolute path": "/var/lib/ollama-kv"}[b.want]
	return hit{
		says:     fmt.Sprintf("%s of %s is not %s.", b.name, whose(o), b.want),
		evidence: []Evidence{{b.name, b.value}},
		values:   []string{"{set}", o.setting(b.name, cmp.Or(example, map[string]string{instanceVar: "gpu0"}[b.name]))},
	}
}

func judgeBadVariable(s *scene) (hits []hit) {
	s.eachSettings(func(o server, set settings) {
		for _, b := range set.fatal {
			hits = append(hits, badHit(o, b))
		}
	})
	return hits
}

func judgeIgnored(s *scene) (hits []hit) {
	s.eachSettings(func(o server, set settings) {
		for _, b := range set.ignored {
			hits = append(hits, badHit(o, b))
		}
	})
	return hits
}

func judgeUnknown(s *scene) (hits []hit) {
	s.eachSettings(func(o server, set settings) {
		for _, name := range set.unknown {
			hits = append(hits, hit{
				says:     fmt.Sprintf("%s has a variable %s, which nobody reads.", capital(whose(o)), name),
				evidence: []Evidence{{name, shown(o.variables(), name)}},
				values:   []string{"{name}", quote(name), "{server}", quote(cmp.Or(o.name, "ollama.service"))},
			})
		}
	})
	return hits
}

func judgeDiffer(s *scene) (hits []hit) {
	for _, o := range s.servers {
		set := o.variables()
		if !s.settingsOf(o).on || set == nil || o.kind == byDocker {
			continue
		}
		for _, name := range compared {
			mine, its := value(s.shell, name), value(set, name)
			if mine == "" || mine == its {
				continue
			}
			hits = append(hits, hit{
				says:     fmt.Sprintf("%s is not the same for this shell and for %s.", name, o.title()),
				evidence: []Evidence{{name + " of this shell", mine}, {name + " of " + o.title(), shown(set, name)}},
				values:   []string{"{name}", name},
			})
		}
	}
	return hits
}

func judgeNotRestarted(s *scene) (hits []hit) {
	for _, o := range s.servers {
		if o.kind != bySystemd || o.pid == 0 {
			continue
		}
		h := hit{says: fmt.Sprintf("%s runs with older settings than its configuration has.", capital(o.name)), values: []string{"{server}", quote(o.name)}}
		if o.props["NeedDaemonReload"] == "yes" {
			h.evidence = append(h.evidence, Evidence{"NeedDaemonReload", "yes"})
		}
		for _, name := range slices.Sorted(maps.Keys(o.next)) {
			if o.set != nil && strings.HasPrefix(name, "OLLAMA_") && value(o.set, name) != value(o.next, name) {
				h.evidence = append(h.evidence, Evidence{name, "runs with " + shown(o.set, name) + ", configured " + shown(o.next, name)})
			}
		}
		if len(h.evidence) > 0 {
			hits = append(hits, h)
		}
	}
	return hits
}

func judgeEnvFile(s *scene) (hits []hit) {
	for _, o := range s.servers {
		for _, f := range o.files {
			if f.err == nil || errors.Is(f.err, fs.ErrPermission) {
				continue // systemd reads it as root
			}
			hits = append(hits, hit{
				says:     fmt.Sprintf("%s is an EnvironmentFile of %s and cannot be read.", f.path, o.name),
				evidence: []Evidence{{f.path, f.err.Error()}},
				values:   []string{"{file}", quote(f.path), "{server}", quote(o.name)},
			})
		}
	}
	return hits
}

func judgeWrongUser(s *scene) (hits []hit) {
	if s.user.UID <= 0 {
		return nil
	}
	for _, o := range s.servers {
		if o.kind == byDocker || o.user.UID < 0 || o.user.UID == s.user.UID {
			continue
		}
		name := cmp.Or(o.user.Name, s.names[o.user.UID])
		hits = append(hits, hit{
			says:     fmt.Sprintf("%s runs as %s, and this is %s.", capital(o.title()), name, cmp.Or(s.user.Name, fmt.Sprint(s.user.UID))),
			evidence: []Evidence{{"user of " + o.title(), name}},
			values:   []string{"{user}", quote(name)},
		})
	}
	return hits
}

func judgeOtherOllama(s *scene) (hits []hit) {
	for _, o := range s.servers {
		if s.inPath == "" || o.kind == byDocker || !strings.HasPrefix(o.exe, "/") || o.pid == 0 || o.exe == s.inPath {
			continue
		}
		hits = append(hits, hit{
			says:     fmt.Sprintf("%s runs %s, and a shell runs %s.", capital(o.title()), o.exe, s.inPath),
			evidence: []Evidence{{"server", o.exe}, {"PATH", s.inPath}},
			values:   []string{"{exe}", o.as + quote(o.exe), "{other}", quote(s.inPath)},
		})
	}
	return hits
}

func judgeContainer(s *scene) (hits []hit) {
	for _, o := range s.servers {
		set := s.settingsOf(o)
		if o.kind != byDocker || !set.on || o.host(set.local) != "" {
			continue
		}
		hits = append(hits, hit{
			says:     fmt.Sprintf("The pages of the container %s are not in a volume.", o.name),
			evidence: []Evidence{{localVar, set.local}},
			values:   []string{"{setting}", localVar + "=/root/.ollama/kv-cache", "{image}", quote(o.image)},
		})
	}
	return hits
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

// capital begins a sentence with a capital letter, unless it begins with a name or a path.
func capital(s string) string {
	for _, word := range []string{"process ", "container ", "this shell"} {
		if strings.HasPrefix(s, word) {
			return strings.ToUpper(s[:1]) + s[1:]
		}
	}
	return s
}
