package machine

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Process is a process of Ollama's.
type Process struct {
	PID, Parent, UID int // UID is the effective one, -1 if it is not known
	Executable       string
	Args             []string
	Variables        map[string]string // nil if they cannot be seen
}

// programs are the names of Ollama's processes.
var programs = []string{"ollama", "llama-server", "llama-server-real"}

// Processes lists Ollama's processes, servers and runners, below a folder such as /proc.
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
		p := Process{PID: pid, Args: strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")}
		if !slices.Contains(programs, path.Base(p.Args[0])) {
			continue
		}
		p.Executable, _ = s.Resolve(dir + "/exe")
		p.Executable = cmp.Or(strings.TrimSuffix(p.Executable, " (deleted)"), p.Args[0])
		p.readStatus(s, dir)
		p.Variables = VariablesOf(s, proc, pid)
		if all = append(all, p); len(all) == 16*ServersMax {
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

func (p *Process) readStatus(s System, dir string) {
	p.UID = -1
	text, _ := s.Read(dir+"/status", TextMax)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && fields[0] == "PPid:":
			p.Parent, _ = strconv.Atoi(fields[1])
		case len(fields) > 2 && fields[0] == "Uid:":
			if n, err := strconv.Atoi(fields[2]); err == nil { // the effective one
				p.UID = n
			}
		}
	}
}

// Serves reports whether it is a server.
func (p Process) Serves() bool {
	return path.Base(p.Args[0]) == "ollama" && len(p.Args) > 1 && p.Args[1] == "serve"
}

// below reports whether a process descends from another.
func (p Process) below(all []Process, ancestor int) bool {
	const depth = 4 // a front, its daemon and an engine
	for range depth {
		if p.Parent == ancestor {
			return ancestor > 0
		}
		at := slices.IndexFunc(all, func(o Process) bool { return o.PID == p.Parent })
		if at < 0 {
			return false
		}
		p = all[at]
	}
	return false
}
