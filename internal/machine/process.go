package machine

import (
	"cmp"
	"path"
	"strconv"
	"strings"
)

// Process is a server of Ollama's.
type Process struct {
	PID, UID   int // UID is the effective one, -1 if it is not known
	Executable string
	Variables  map[string]string // nil if they cannot be seen
}

// Processes lists the processes ollama serve below a folder such as /proc.
func Processes(s System, proc string) []Process {
	if s.OS() != "linux" {
		return nil
	}
	names, _ := s.List(proc, processesMax)
	var all []Process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		dir := path.Join(proc, name)
		line, err := s.Read(dir+"/cmdline", TextMax)
		if err != nil || len(line) == 0 {
			continue
		}
		args := strings.Split(string(line), "\x00")
		if path.Base(args[0]) != "ollama" || len(args) < 2 || args[1] != "serve" {
			continue
		}
		exe, _ := s.Resolve(dir + "/exe")
		p := Process{PID: pid, UID: effectiveUID(s, dir), Executable: cmp.Or(strings.TrimSuffix(exe, " (deleted)"), args[0]), Variables: VariablesOf(s, proc, pid)}
		if all = append(all, p); len(all) == ServersMax {
			break
		}
	}
	return all
}

// VariablesOf returns the variables of a process, nil if they cannot be seen.
func VariablesOf(s System, proc string, pid int) map[string]string {
	text, err := s.Read(path.Join(proc, strconv.Itoa(pid), "environ"), TextMax)
	if err != nil || pid == 0 {
		return nil
	}
	return variablesIn(strings.Split(string(text), "\x00"))
}

// effectiveUID is the user of a process, -1 if it is not known.
func effectiveUID(s System, dir string) int {
	text, _ := s.Read(dir+"/status", TextMax)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && fields[0] == "Uid:" {
			if n, err := strconv.Atoi(fields[2]); err == nil {
				return n
			}
		}
	}
	return -1
}
