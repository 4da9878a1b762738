package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Kind is how a server runs.
type Kind string

// Kinds of servers.
const (
	BySystemd Kind = "systemd"
	ByDocker  Kind = "docker"
	ByHand    Kind = "process"
)

// Server is a program that runs Ollama, or would.
type Server struct {
	Kind       Kind
	Name       string // of the unit or the container
	PID        int    // 0 while it does not run
	User       Account
	Executable string
	Set        map[string]string // variables of the running program; nil if they cannot be seen
	Next       map[string]string // variables that its next start has; nil if it is not known
	Service    Service           // of systemd
	Volumes    map[string]string // of a container: the host's directory by the container's
	Image      string            // of a container
}

// Variables are the best known ones.
func (s Server) Variables() map[string]string {
	if s.Set != nil {
		return s.Set
	}
	return s.Next
}

// Home is the home directory of the server's user, "" if it is not known.
func (s Server) Home() string { return cmp.Or(s.Variables()["HOME"], s.User.Home) }

// Host returns the place on this machine of a container's path, "" if it is in no volume.
func (s Server) Host(name string) string {
	best, found := "", ""
	for inside, outside := range s.Volumes {
		if Within(name, inside) && len(inside) > len(best) {
			best, found = inside, outside+strings.TrimPrefix(name, inside)
		}
	}
	return found
}

// FindServer is the server that a unit of systemd runs, or would; nil without such a unit.
func FindServer(ctx context.Context, s System, unit string) *Server {
	u, err := FindService(ctx, s, unit)
	if err != nil || !u.Loaded() {
		return nil
	}
	o := &Server{Kind: BySystemd, Name: u.Name, PID: u.PID, Executable: u.Executable, Next: u.Variables, Service: u}
	o.User, _ = s.Account(cmp.Or(u.Props["User"], "root"))
	if o.User.Name == "" {
		o.User = Account{UID: -1, Name: u.Props["User"]}
	}
	if _, ok := o.Next["HOME"]; !ok {
		o.Next["HOME"] = o.User.Home
	}
	return o
}

// Servers joins the answers about a unit, containers and processes: a process may be that of a service or
// of a container.
func Servers(s System, unit *Server, containers []Server, all []Process) []Server {
	var list []Server
	if unit != nil {
		list = append(list, *unit)
	}
	list = append(list, containers...)
	for _, p := range all {
		at := slices.IndexFunc(list, func(o Server) bool { return o.PID == p.PID })
		if at < 0 {
			at = len(list)
			list = append(list, Server{Kind: ByHand, Name: strconv.Itoa(p.PID), PID: p.PID})
		}
		o := &list[at]
		o.Executable = cmp.Or(p.Executable, o.Executable)
		if o.Kind != ByDocker || o.Set == nil {
			o.Set = p.Variables
		}
		if o.Kind != ByDocker {
			o.User, _ = s.Account(strconv.Itoa(p.UID))
			o.User.UID = p.UID
		}
	}
	return list[:min(len(list), ServersMax)]
}

// container is a part of the output of docker inspect.
type container struct {
	Name   string
	Path   string
	State  struct{ Pid int }
	Mounts []struct{ Source, Destination string }
	Config struct {
		Image string
		User  string
		Env   []string
	}
}

// Containers asks Docker for containers that run Ollama, where Docker is there.
func Containers(ctx context.Context, s System) (list []Server) {
	if _, err := s.Find("docker"); err != nil {
		return nil
	}
	out, err := s.Run(ctx, nil, "docker", "ps", "--quiet", "--no-trunc")
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil // Docker is not running, or not ours
	}
	const idsMax = 64
	// The error may be about a container that has ended meanwhile; the others are in the output.
	out, _ = s.Run(ctx, nil, "docker", append([]string{"inspect"}, ids[:min(len(ids), idsMax)]...)...)
	var all []container
	if json.Unmarshal([]byte(out), &all) != nil {
		return nil
	}
	for _, c := range all {
		if !strings.Contains(c.Config.Image, "ollama") && path.Base(c.Path) != "ollama" { // an argument may name one, too
			continue
		}
		o := Server{
			Kind: ByDocker, Name: strings.TrimPrefix(c.Name, "/"), PID: c.State.Pid, Image: c.Config.Image,
			Set: variablesIn(c.Config.Env), Volumes: make(map[string]string),
			User: Account{UID: -1, Name: c.Config.User, Home: "/root"},
		}
		if c.Config.User == "" || c.Config.User == "root" {
			o.User = Account{UID: 0, Name: "root", Home: "/root"}
		}
		for _, m := range c.Mounts {
			o.Volumes[m.Destination] = m.Source
		}
		list = append(list, o)
	}
	return list
}

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
