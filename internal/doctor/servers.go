package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
)

// server is a program that runs Ollama, or would.
type server struct {
	machine.Server

	// as begins a command with the rights of the server's user: "sudo -u ann ". It is set for a
	// process of another user than the one who looks and root. Anybody may start a program named
	// ollama with any variables, and a command that is pasted must not obey them with root's rights.
	as string
}

// title names the server for people.
func (s server) title() string {
	switch {
	case s.Kind == machine.ByHand && s.PID == 0:
		return "this shell"
	case s.Kind == machine.ByHand:
		return "process " + strconv.Itoa(s.PID) + " (" + s.Executable + ")"
	case s.Kind == machine.ByDocker:
		return "container " + s.Name
	}
	return s.Name
}

// setting is the command that gives the server a variable.
func (s server) setting(name, value string) string {
	set := quote(name + "=" + value)
	switch s.Kind {
	case machine.BySystemd:
		dir := quote("/etc/systemd/system/" + s.Name + ".d")
		return "sudo mkdir -p " + dir + " && printf '[Service]\\nEnvironment=\"%s\"\\n' " + set + " | sudo tee " + dir + "/" + name +
			".conf && sudo systemctl daemon-reload && sudo systemctl restart " + quote(s.Name)
	case machine.ByDocker:
		return "docker run --env " + set + " … " + quote(s.Image) + "  # with the other arguments that " + s.Name + " was started with"
	}
	if s.as != "" {
		set = s.as + "env " + set
	}
	return set + " " + quote(cmp.Or(s.Executable, "ollama")) + " serve"
}

// serversOf notes the users of processes for commands.
func serversOf(all []machine.Server, me machine.Account) []server {
	list := make([]server, len(all))
	for i, o := range all {
		list[i].Server = o
		if o.Kind == machine.ByHand && o.User.UID > 0 && o.User.UID != me.UID {
			list[i].as = "sudo -u " + quote(cmp.Or(o.User.Name, "#"+strconv.Itoa(o.User.UID))) + " "
		}
	}
	return list
}

// installed is an installation of Ollama with its libraries.
type installed struct {
	install.Status
	patched bool // kvtier is in the program
}

// installations lists the installations of Ollama.
func installations(ctx context.Context, e Environment) []installed {
	all, _ := e.Installed(ctx)
	var list []installed
	for _, s := range all[:min(len(all), machine.ServersMax)] {
		list = append(list, installed{s, e.Patched(s.Executable)})
	}
	return list
}

// how says how kvtier is in it.
func (i installed) how() string {
	switch {
	case i.patched:
		return "patched in"
	case i.State == install.Installed:
		return "before llama-server"
	}
	return strings.TrimSpace(fmt.Sprintf("%v", i.State))
}
