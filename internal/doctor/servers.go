package doctor

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/llamatier/install"
)

// Kinds of servers.
const (
	bySystemd = "systemd"
	byDocker  = "docker"
	byHand    = "process"
)

// server is a program that runs Ollama, or would.
type server struct {
	kind, name string
	pid        int // 0 while it does not run
	user       Account
	exe        string
	set        map[string]string // variables of the running program; nil if they cannot be seen
	next       map[string]string // variables that its next start has; nil if it is not known
	props      map[string]string // of systemd
	volumes    map[string]string // of a container: the host's directory by the container's
	image      string
	mounts     []mount // that the program sees
	runners    []process

	// as begins a command with the rights of the server's user: "sudo -u ann ". It is set for a
	// process of another user than the one who looks and root. Anybody may start a program named
	// ollama with any variables, and a command that is pasted must not obey them with root's rights.
	as string
}

// variables are the best known ones.
func (s server) variables() map[string]string {
	if s.set != nil {
		return s.set
	}
	return s.next
}

// title names the server for people.
func (s server) title() string {
	switch {
	case s.kind == byHand:
		return "process " + strconv.Itoa(s.pid) + " (" + s.exe + ")"
	case s.kind == byDocker:
		return "container " + s.name
	}
	return s.name
}

// setting is the command that gives the server a variable.
func (s server) setting(name, value string) string {
	set := quote(name + "=" + value)
	switch s.kind {
	case bySystemd:
		dir := quote("/etc/systemd/system/" + s.name + ".d")
		return "sudo mkdir -p " + dir + " && printf '[Service]\\nEnvironment=\"%s\"\\n' " + set + " | sudo tee " + dir + "/" + name +
			".conf && sudo systemctl daemon-reload && sudo systemctl restart " + quote(s.name)
	case byDocker:
		return "docker run --env " + set + " … " + quote(s.image) + "  # with the other arguments that " + s.name + " was started with"
	}
	if s.as != "" {
		set = s.as + "env " + set
	}
	return set + " " + quote(cmp.Or(s.exe, "ollama")) + " serve"
}

// setAs notes the user of a process for commands.
func (s *server) setAs(me Account) {
	if s.kind != byHand || s.user.UID <= 0 || s.user.UID == me.UID {
		return
	}
	s.as = "sudo -u " + quote(cmp.Or(s.user.Name, "#"+strconv.Itoa(s.user.UID))) + " "
}

// Bounds of the lists of processes and containers.
const (
	processesMax = 1 << 16
	serversMax   = 16
	textMax      = 1 << 20 // bytes of a file of text
)

// process is a process of Ollama's.
type process struct {
	pid, parent, uid int
	exe              string
	args             []string
	set              map[string]string // nil if it cannot be seen
}

// processes lists Ollama's processes: servers and runners.
func processes(e Environment) []process {
	if e.OS() != "linux" {
		return nil
	}
	names, _ := e.List("/proc", processesMax)
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		dir := "/proc/" + name
		line, err := e.Read(dir+"/cmdline", textMax)
		if err != nil || len(line) == 0 {
			continue
		}
		p := process{pid: pid, args: strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")}
		base := path.Base(p.args[0])
		if !slices.Contains([]string{"ollama", "llama-server", "llama-server-real", "kvtier-llama-server"}, base) {
			continue
		}
		p.exe, _ = e.Resolve(dir + "/exe")
		p.exe = cmp.Or(strings.TrimSuffix(p.exe, " (deleted)"), p.args[0])
		p.readStatus(e, dir)
		if text, err := e.Read(dir+"/environ", textMax); err == nil {
			p.set = variablesIn(string(text), "\x00")
		}
		if all = append(all, p); len(all) == 16*serversMax {
			break
		}
	}
	return all
}

func (p *process) readStatus(e Environment, dir string) {
	p.uid = -1
	text, _ := e.Read(dir+"/status", textMax)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && fields[0] == "PPid:":
			p.parent, _ = strconv.Atoi(fields[1])
		case len(fields) > 2 && fields[0] == "Uid:":
			if n, err := strconv.Atoi(fields[2]); err == nil { // the effective one
				p.uid = n
			}
		}
	}
}

func (p process) serves() bool {
	return path.Base(p.args[0]) == "ollama" && len(p.args) > 1 && p.args[1] == "serve"
}

// variablesIn reads NAME=value texts. The first one of a name counts, as for getenv.
func variablesIn(text, separator string) map[string]string {
	set := make(map[string]string)
	for _, one := range strings.Split(text, separator) {
		if name, v, ok := strings.Cut(one, "="); ok && name != "" {
			if _, there := set[name]; !there {
				set[name] = v
			}
		}
	}
	return set
}

// service asks systemd for the unit of a server.
func service(ctx context.Context, e Environment, name string) *server {
	if e.OS() != "linux" {
		return nil
	}
	if _, err := e.Find("systemctl"); err != nil {
		return nil
	}
	if name = cmp.Or(name, "ollama.service"); !strings.Contains(name, ".") {
		name += ".service"
	}
	out, err := e.Run(ctx, "systemctl", "show", name, "--property="+strings.Join(properties, ","))
	if err != nil {
		return nil
	}
	s := &server{kind: bySystemd, name: name, props: make(map[string]string), next: make(map[string]string)}
	var files []string
	for line := range strings.Lines(out) {
		key, v, ok := strings.Cut(strings.TrimRight(line, "\n"), "=")
		switch {
		case !ok:
		case key == "EnvironmentFiles": // one line for each
			file, _, _ := strings.Cut(v, " (")
			files = append(files, file)
		default:
			s.props[key] = v
		}
	}
	if s.props["LoadState"] != "loaded" {
		return nil
	}
	s.pid, _ = strconv.Atoi(s.props["MainPID"])
	for _, word := range install.Words(s.props["Environment"]) {
		if k, v, ok := strings.Cut(word, "="); ok {
			s.next[k] = v
		}
	}
	for _, file := range files {
		text, _ := readLinked(e, file, textMax) // systemd reads a file that only root may read
		for k, v := range environmentFile(string(text)) {
			s.next[k] = v
		}
	}
	s.user, _ = e.Account(cmp.Or(s.props["User"], "root"))
	if s.user.Name == "" {
		s.user = Account{UID: -1, Name: s.props["User"]}
	}
	if _, ok := s.next["HOME"]; !ok {
		s.next["HOME"] = s.user.Home
	}
	if at := strings.Index(s.props["ExecStart"], "path="); at >= 0 {
		s.exe, _, _ = strings.Cut(s.props["ExecStart"][at+len("path="):], " ;")
	}
	return s
}

// properties of a unit that checks look at.
var properties = []string{
	"LoadState", "MainPID", "ExecStart", "User", "DynamicUser", "Environment", "EnvironmentFiles", "NeedDaemonReload",
	"PrivateTmp", "ProtectSystem", "ProtectHome", "ReadWritePaths", "StateDirectory",
}

// environmentFile reads the lines of an EnvironmentFile.
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

// serversOf joins the answers: a process may be that of a service or of a container.
func serversOf(e Environment, unit *server, containers []server, all []process) []server {
	var list []server
	if unit != nil {
		list = append(list, *unit)
	}
	list = append(list, containers...)
	for _, p := range all {
		if !p.serves() {
			continue
		}
		at := slices.IndexFunc(list, func(s server) bool { return s.pid == p.pid })
		if at < 0 {
			at = len(list)
			list = append(list, server{kind: byHand, name: strconv.Itoa(p.pid), pid: p.pid})
		}
		s := &list[at]
		if s.kind != byDocker || s.set == nil {
			s.set = p.set
		}
		s.exe = cmp.Or(p.exe, s.exe)
		if s.kind != byDocker {
			s.user, _ = e.AccountOf(p.uid)
			s.user.UID = p.uid
			s.setAs(e.User())
		}
	}
	list = list[:min(len(list), serversMax)]
	for _, p := range all {
		for i := range list {
			if !p.serves() && below(all, p, list[i].pid) {
				list[i].runners = append(list[i].runners, p)
			}
		}
	}
	for i := range list {
		if text, err := e.Read("/proc/"+strconv.Itoa(list[i].pid)+"/mountinfo", textMax); err == nil && list[i].pid > 0 {
			list[i].mounts = parseMounts(string(text))
		}
	}
	return list
}

// below reports whether a process descends from another.
func below(all []process, p process, ancestor int) bool {
	const depth = 4 // a front, its daemon and an engine
	for range depth {
		if p.parent == ancestor {
			return ancestor > 0
		}
		at := slices.IndexFunc(all, func(o process) bool { return o.pid == p.parent })
		if at < 0 {
			return false
		}
		p = all[at]
	}
	return false
}
