package install

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
	if note := untried(s.Ollama); note != "" && s.State == Installed {
		s.hint("%s", note)
	}
	s.Pages, s.Log = set[tierenv.LocalVariable], set[LogVariable]
	if s.State == Installed && s.Log == "" && set["HOME"] != "" {
		s.Log = filepath.Join(set["HOME"], ".ollama", "logs", "kvtier.log")
	}
	if s.State == Installed {
		s.LastLog = lastLine(s.Log)
	}
	return s
}

func (s *Status) hint(format string, args ...any) {
	s.Hints = append(s.Hints, fmt.Sprintf(format, args...))
}

// statusOfFile looks at a folder, and returns the variables of the server that uses it.
func (m *Machine) statusOfFile(o Ollama, s *Status) map[string]string {
	f, err := m.open(o.Folder)
	if err != nil {
		s.State = Broken
		s.hint("%s", capital(err.Error()+"."))
		return nil
	}
	var why string
	if s.State, why = f.state(); why != "" {
		s.hint("%s", capital(why+"."))
	}
	if f.server.is == ours {
		s.Kvtier = f.server.version
	}
	if s.State == None && len(f.leftovers()) > 0 {
		s.State = Interrupted
		s.hint("Install or remove was broken off; run it again.")
	}
	pid := m.process(o.Executable)
	set := m.environment(pid)
	switch {
	case s.State != Installed:
	case set == nil:
		s.Tiering = "unknown"
	default:
		s.Tiering = tiering(set)
		if s.Tiering == "off" {
			s.hint("The server runs without OLLAMA_KV_TIERING=1.")
		}
	}
	return set
}

// statusOfService looks at a service, and returns its variables.
func (m *Machine) statusOfService(o Ollama, s *Status) map[string]string {
	set := o.unit.variables()
	if of := m.environment(o.unit.pid); of != nil {
		set = of
	}
	_, there, err := m.readDropIn(o.Service)
	path := filepath.Join(m.Base, serverName)
	f, e := m.look(path)
	switch {
	case err != nil:
		s.State = Broken
		s.hint("%s", capital(err.Error()+"."))
		return set
	case !there:
		return m.statusWithoutDropIn(o, s, set)
	case e != nil || f.is != ours:
		s.State = Broken
		s.hint("%s is gone, so the service runs Ollama's own llama-server; run kvtier ollama install again.", path)
		return set
	}
	s.State, s.Kvtier = Installed, f.version
	if !slices.Contains(m.mounted(o.Folder), o.Service) {
		s.State = Replaced
		s.hint("Ollama's folder is %s now, and the drop-in is for another one; run kvtier ollama install again.", o.Folder)
		return set
	}
	if !o.unit.active {
		s.hint("%s is not running.", o.Service)
	} else if why := m.without(o, o.unit); why != "" {
		s.hint("%s", capital(why+"."))
		return set
	}
	s.Tiering = tiering(set)
	return set
}

// statusWithoutDropIn looks at the folder of a service without our drop-in.
func (m *Machine) statusWithoutDropIn(o Ollama, s *Status, set map[string]string) map[string]string {
	if _, err := os.Lstat(m.Base); err == nil {
		s.State = Interrupted
		s.hint("Install or remove was broken off; run it again.")
		return set
	}
	m.statusOfFile(o, s)
	if s.State == Installed {
		s.Tiering = tiering(set)
		s.hint("The next update of Ollama takes the file's place; kvtier ollama remove and install change the service instead.")
	}
	return set
}

// tiering reads the variable as the server does.
func tiering(set map[string]string) string {
	if on, err := strconv.ParseBool(cmp.Or(strings.Trim(set["OLLAMA_KV_TIERING"], `"' `), "0")); err == nil && !on {
		return "off"
	}
	return "on"
}

func capital(sentence string) string {
	if strings.HasPrefix(sentence, "install ") {
		return "I" + sentence[1:]
	}
	return sentence
}

// logTail is the part of a log that is searched, in bytes.
const logTail = 64 << 10

// lastLine returns the last line of a log that says whether a model is tiered.
func lastLine(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	tail := make([]byte, min(logTail, info.Size()))
	n, _ := f.ReadAt(tail, info.Size()-int64(len(tail)))
	var last string
	for line := range bytes.Lines(tail[:n]) {
		if bytes.Contains(line, []byte(`msg="kv tier: o`)) {
			last = strings.TrimSpace(string(line))
		}
	}
	return last
}
