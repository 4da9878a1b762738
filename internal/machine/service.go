package machine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
)

// DefaultService is the unit that Ollama's own installer makes.
const DefaultService = "ollama.service"

// Service is a systemd unit.
type Service struct {
	Name       string
	Executable string // ollama, also behind a program such as env
	Active     bool
	PID        int               // 0 while it does not run
	Props      map[string]string // as systemctl shows them
	Variables  map[string]string // that its next start has
}

// properties of a unit that somebody asks for.
var properties = []string{
	"LoadState", "ActiveState", "MainPID", "ExecStart", "User", "DynamicUser", "Environment", "EnvironmentFiles", "NeedDaemonReload",
	"PrivateTmp", "ProtectSystem", "ProtectHome", "ReadWritePaths", "StateDirectory", "RootDirectory", "RootImage", "RestrictAddressFamilies",
}

// ErrNoSystemd: this machine has no systemctl.
var ErrNoSystemd = errors.New("there is no systemctl here")

// FindService asks systemd for a unit, for Ollama's own where it has no name. One that does not exist
// is not [Service.Loaded].
func FindService(ctx context.Context, s System, name string) (u Service, err error) {
	if name = cmp.Or(name, DefaultService); !strings.Contains(name, ".") {
		name += ".service"
	}
	u = Service{Name: name, Props: make(map[string]string), Variables: make(map[string]string)}
	if _, err := s.Find("systemctl"); err != nil || s.OS() != "linux" {
		return u, ErrNoSystemd
	}
	out, err := s.Run(ctx, nil, "systemctl", "show", u.Name, "--property="+strings.Join(properties, ","))
	if err != nil {
		return u, err
	}
	var files []string
	for line := range strings.Lines(out) {
		key, v, ok := strings.Cut(strings.TrimRight(line, "\n"), "=")
		switch {
		case !ok:
		case key == "EnvironmentFiles": // one line for each
			file, _, _ := strings.Cut(v, " (")
			files = append(files, file)
		default:
			u.Props[key] = v
		}
	}
	u.PID, _ = strconv.Atoi(u.Props["MainPID"])
	u.Active = u.Props["ActiveState"] == "active" || u.Props["ActiveState"] == "activating"
	u.Executable = u.runs()
	for _, word := range Words(u.Props["Environment"]) {
		if k, v, ok := strings.Cut(word, "="); ok {
			u.Variables[k] = v
		}
	}
	for _, file := range files {
		text, _ := ReadLinked(s, file, TextMax) // systemd reads a file that only root may read
		maps.Copy(u.Variables, environmentFile(string(text)))
	}
	return u, nil
}

// Loaded reports whether systemd has the unit.
func (u Service) Loaded() bool { return u.Props["LoadState"] == "loaded" }

// execStart matches the program and its arguments in the property ExecStart.
var execStart = regexp.MustCompile(`\bpath=(.*?) ; argv\[\]=(.*?) ;`)

// runs returns the program of a service: ollama, also behind a program such as env.
func (u Service) runs() string {
	found := execStart.FindStringSubmatch(u.Props["ExecStart"])
	if found == nil {
		return ""
	}
	for _, word := range Words(found[2]) {
		if path.IsAbs(word) && path.Base(word) == "ollama" {
			return word
		}
	}
	return found[1]
}

// inHome reports whether ProtectHome is about a path.
func inHome(path string) bool {
	return Within(path, "/home") || Within(path, "/root") || Within(path, "/run/user")
}

// Hides reports whether ProtectHome hides a path from the service.
func (u Service) Hides(path string) bool {
	home := u.Props["ProtectHome"]
	return (home == "yes" || home == "tmpfs") && inHome(path)
}

// Writable reports whether the settings of the service let it write to a path.
func (u Service) Writable(path string) bool {
	allowed := strings.Fields(u.Props["ReadWritePaths"])
	for name := range strings.FieldsSeq(u.Props["StateDirectory"]) {
		allowed = append(allowed, "/var/lib/"+name)
	}
	for _, dir := range allowed {
		if Within(path, strings.TrimLeft(dir, "-+")) {
			return !u.Hides(path)
		}
	}
	system := u.Props["ProtectSystem"]
	switch {
	case u.Hides(path), u.Props["ProtectHome"] == "read-only" && inHome(path), system == "strict":
		return false
	case system == "yes", system == "full":
		return !Within(path, "/usr") && !Within(path, "/boot") && (system == "yes" || !Within(path, "/etc"))
	}
	return true
}

// PrivateTmp reports whether the service sees another directory of this name, which goes when it stops.
func (u Service) PrivateTmp(path string) bool {
	private := u.Props["PrivateTmp"]
	return (private == "yes" || private == "disconnected") && (Within(path, "/tmp") || Within(path, "/var/tmp"))
}

func environmentFile(text string) map[string]string {
	set := make(map[string]string)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, v, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			set[strings.TrimSpace(name)] = env.Trim(v)
		}
	}
	return set
}

// Words splits a list as systemctl prints it: words with spaces have quotes.
func Words(list string) []string {
	var all []string
	var word strings.Builder
	quoted, escaped := false, false
	for _, r := range list + " " {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case r == ' ' && !quoted:
			if word.Len() > 0 {
				all = append(all, word.String())
			}
			word.Reset()
		default:
			word.WriteRune(r)
		}
	}
	return all
}
