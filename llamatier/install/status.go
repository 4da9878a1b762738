package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// status looks at one installation. host is OLLAMA_HOST of this user.
func (m *Machine) status(ctx context.Context, o Ollama, host string) Status {
	s := Status{Executable: o.Executable, Service: o.Service, Folder: o.Folder, State: Unsupported, Tiering: "off", Hints: []string{}}
	var set map[string]string
	switch {
	case o.Folder == "":
		s.hint("%s has no llama-server; Ollama has it from %s on.", o.Executable, oldest)
	case o.Service != "":
		set = m.statusOfService(o, &s)
	default:
		set = m.statusOfFile(o, &s)
	}
	if value, ok := set["OLLAMA_HOST"]; ok || o.Service != "" {
		host = value
	}
	s.URL = serverURL(host)
	v, err := m.Version(ctx, s.URL)
	if s.Answers = err == nil; s.Answers {
		s.Ollama = v
	} else {
		s.Ollama = m.version(ctx, o)
	}
	s.Pages, s.Log = set[tierenv.LocalVariable], set[LogVariable]
	if s.State == Installed && s.Log == "" && set["HOME"] != "" {
		s.Log = logIn(set["HOME"])
	}
	if s.State == Installed && s.Tiering != "off" { // else the line is of an earlier server
		s.LastLog = lastLine(s.Log)
	}
	return s
}

func (s *Status) say(f fault) {
	s.Cure = f.cure
	s.hint("%s", machine.Capital(f.String()+"."))
}

func (s *Status) hint(format string, args ...any) {
	s.Hints = append(s.Hints, fmt.Sprintf(format, args...))
}

// statusOfFile looks at a folder, and returns the variables of the server that uses it.
func (m *Machine) statusOfFile(o Ollama, s *Status) map[string]string {
	f, err := m.Program.open(o.Folder)
	if err != nil {
		s.State = Broken
		s.say(fault{why: err.Error()})
		return nil
	}
	var off fault
	s.State, off = m.trouble(o, f)
	if s.State == None && len(f.leftovers()) > 0 {
		s.State, off.why = Interrupted, brokenOff
	}
	if s.Cure = off.cure; off.why != "" {
		s.say(off)
	}
	if f.server.is == ours {
		s.Kvtier = f.server.version
	}
	pid := m.process(o.Executable)
	set := machine.VariablesOf(m.System, m.Proc, pid)
	switch {
	case s.State != Installed:
	case set == nil:
		s.Tiering = "unknown"
	default:
		if s.Tiering = "on"; !on(set) {
			s.Tiering = "off"
			s.say(fault{"the server runs without OLLAMA_KV_TIERING=1, so stop it first", startOf(o)})
		}
	}
	return set
}

// statusOfService looks at a service, and returns its variables.
func (m *Machine) statusOfService(o Ollama, s *Status) map[string]string {
	set := o.unit.Variables
	if of := machine.VariablesOf(m.System, m.Proc, o.unit.PID); of != nil {
		set = of
	}
	_, there, err := m.Units.read(o.Service)
	switch {
	case err != nil:
		s.State = Broken
		s.say(fault{why: err.Error()})
		return set
	case !there:
		if _, err := os.Lstat(m.Base); err == nil {
			s.State = Interrupted
			s.say(fault{brokenOff, m.again("install", o)})
		} else if m.statusOfFile(o, s); s.State == Installed {
			s.hint("The next update of Ollama takes the file's place; %s and then %s change the service instead.", m.again("remove", o), m.again("install", o))
		}
		return set
	}
	var off *fault
	if s.State, s.Kvtier, off = m.mounts(o); off != nil {
		s.say(*off)
		return set
	}
	s.Tiering = m.tieringOfService(o, s)
	return set
}

// mounts is the state of a service with our drop-in, the version of our program, and what is wrong, or nil.
func (m *Machine) mounts(o Ollama) (s state, version string, off *fault) {
	path := filepath.Join(m.Base, ServerName)
	version, own := m.Program(path)
	switch {
	case !own:
		return Broken, "", &fault{fmt.Sprintf("%s is gone, so the service runs Ollama's own llama-server", path), m.again("install", o)}
	case m.Units.folder(o.Service) != o.Folder:
		return Replaced, version, &fault{fmt.Sprintf("Ollama's folder is %s now, and the drop-in is for another one", o.Folder), m.again("install", o)}
	}
	return Installed, version, nil
}

func (m *Machine) tieringOfService(o Ollama, s *Status) string {
	if !o.unit.Active {
		s.hint("%s is not running.", o.Service)
		if on(o.unit.Variables) {
			return "unknown"
		}
		s.say(*m.switchedOff(o.unit, o.unit.Variables))
		return "off"
	}
	off, seen := m.without(o, o.unit)
	switch {
	case off != nil:
		s.say(*off)
		return "off"
	case !seen:
		s.hint("Only root and the service's user see the server of %s and its log; run %s.", o.Service, m.withSudo())
		return "unknown"
	}
	return "on"
}

// on reports whether variables turn tiering on, as the server reads them. With a value that is
// neither true nor false nothing is stored.
func on(set map[string]string) bool {
	value, err := strconv.ParseBool(env.Trim(set[tierenv.TieringVariable]))
	return err == nil && value
}

// switchedOff says that variables of a service turn tiering off.
func (m *Machine) switchedOff(u machine.Service, set map[string]string) *fault {
	value := env.Trim(set[tierenv.TieringVariable])
	if value == "" {
		return &fault{fmt.Sprintf("%s runs without %s", u.Name, tierenv.TieringVariable), m.restartOf(u)}
	}
	if _, err := strconv.ParseBool(value); err != nil {
		return &fault{why: fmt.Sprintf("%s=%s in %s is neither 1 nor 0, so nothing is stored: another drop-in sets it, see systemctl cat %[3]s", tierenv.TieringVariable, value, u.Name)}
	}
	return &fault{why: fmt.Sprintf("%s is off in %s: another drop-in sets it, see systemctl cat %[2]s", tierenv.TieringVariable, u.Name)}
}

// logTail is the part of a log that is searched, in bytes.
const logTail = 64 << 10

// lastLine returns the last line of a log that says whether a model is tiered.
func lastLine(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := openSame(path, info)
	if err != nil {
		return ""
	}
	defer f.Close()
	tail := make([]byte, min(logTail, info.Size()))
	n, _ := f.ReadAt(tail, info.Size()-int64(len(tail)))
	var last string
	for line := range bytes.Lines(tail[:n]) {
		if bytes.Contains(line, []byte(`msg="kv tier: on"`)) || bytes.Contains(line, []byte(`msg="kv tier: off for this model"`)) {
			last = strings.TrimSpace(string(line))
		}
	}
	return last
}

// Served is a service that has our llama-server.
type Served struct {
	Service   string
	Variables map[string]string // of the tiers and their credentials, and OLLAMA_MODELS
	Group     string            // whose members may read, or ""
	Reads     string            // what a member writes in place of kvtier, or ""
	Private   bool              // DynamicUser=yes: only root and the service reach its directories
}

// Served returns the service that kvtier is installed for, if there is exactly one.
func (m *Machine) Served(ctx context.Context) (Served, bool) {
	services := m.Units.changed()
	if len(services) != 1 {
		return Served{}, false
	}
	s := Served{Service: services[0], Variables: make(map[string]string)}
	ours, _, err := m.Units.read(s.Service)
	if err != nil {
		return Served{}, false
	}
	u, _ := m.unit(ctx, s.Service) // with the variables of other drop-ins, if systemd answers
	s.Group = ours[GroupVariable]
	s.Reads = m.reads(u, s.Group)
	s.Private = u.Props["DynamicUser"] == "yes"
	for _, set := range []map[string]string{ours, u.Variables} {
		for name, value := range set {
			if strings.HasPrefix(name, "OLLAMA_KV_") || strings.HasPrefix(name, "AWS_") || name == "OLLAMA_MODELS" {
				s.Variables[name] = value
			}
		}
	}
	if home := u.Variables["HOME"]; home != "" && s.Variables["OLLAMA_MODELS"] == "" {
		s.Variables["OLLAMA_MODELS"] = filepath.Join(home, ".ollama", "models")
	}
	return s, true
}

// Updates returns a sentence for each Ollama of which an update has put its own llama-server in the place of ours,
// and for each service that does not find ours, with the command that takes it back. It looks at files alone, and
// starts nothing. folders are further folders of a llama-server.
func (m *Machine) Updates(folders ...string) (said []string) {
	for _, prefix := range m.Prefixes {
		folders = append(folders, filepath.Join(prefix, "lib", "ollama"))
	}
	found := m.withRunning(nil)
	if path, err := m.System.Find("ollama"); err == nil {
		if path = machine.Executable(m.System, path); path != "" {
			found = append(found, Ollama{Folder: machine.ServerFolder(m.System, path)})
		}
	}
	for _, o := range found {
		folders = append(folders, o.Folder)
	}
	slices.Sort(folders)
	has := func(folder string) bool {
		_, err := os.Stat(filepath.Join(folder, ServerName))
		return folder != "" && err == nil
	}
	folders = slices.DeleteFunc(slices.Compact(folders), func(folder string) bool { return !has(folder) })
	for _, service := range m.Units.changed() {
		o := Ollama{Service: service, Folder: m.Units.folder(service)}
		if !has(o.Folder) && len(folders) > 0 {
			o.Folder = folders[0] // what a service runs only systemd knows
		}
		if _, _, off := m.mounts(o); off != nil {
			said = append(said, fmt.Sprintf("Models of %s are not tiered: %s.", service, off))
		}
	}
	for _, folder := range folders {
		n, _, err := readNote(noteOf(folder))
		server := filepath.Join(folder, ServerName)
		if err != nil || !n.Done {
			continue
		}
		if _, own := m.Program(server); own {
			continue
		}
		said = append(said, fmt.Sprintf("The installation of kvtier in %s was replaced by an update of Ollama, so no model is tiered. Run %s.", folder, m.again("install", Ollama{Folder: folder})))
	}
	return said
}
