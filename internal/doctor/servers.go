package doctor

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
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
	set := machine.Quote(name + "=" + value)
	switch s.Kind {
	case machine.BySystemd:
		dir := machine.Quote("/etc/systemd/system/" + s.Name + ".d")
		return "sudo mkdir -p " + dir + " && printf '[Service]\\nEnvironment=%s\\n' " + machine.Quote(machine.InUnit(name+"="+value)) + " | sudo tee " + dir + "/zz-" + name +
			".conf && sudo systemctl daemon-reload && sudo systemctl restart " + machine.Quote(s.Name)
	case machine.ByDocker:
		return "docker run --env " + set + " … " + machine.Quote(s.Image) + "  # with the other arguments that " + s.Name + " was started with"
	}
	if s.as != "" {
		set = s.as + "env " + set
	}
	return set + " " + machine.Quote(cmp.Or(s.Executable, "ollama")) + " serve"
}

// serversOf notes the users of processes for commands.
func serversOf(all []machine.Server, me machine.Account) []server {
	list := make([]server, len(all))
	for i, o := range all {
		list[i].Server = o
		if o.Kind == machine.ByHand && o.User.UID > 0 && o.User.UID != me.UID {
			list[i].as = "sudo -u " + machine.Quote(cmp.Or(o.User.Name, "#"+strconv.Itoa(o.User.UID))) + " "
		}
	}
	return list
}

// installed is an installation of Ollama with its libraries.
type installed struct {
	install.Status
	patched bool // kvtier is in the program
}

func installations(ctx context.Context, e Environment) []installed {
	all, _ := e.Installed(ctx)
	var list []installed
	for _, s := range all[:min(len(all), machine.ServersMax)] {
		list = append(list, installed{s, e.Patched(s.Executable)})
	}
	return list
}

func (i installed) how() string {
	switch {
	case i.patched:
		return "patched in"
	case i.State == install.Installed:
		return "before llama-server"
	}
	return string(i.State)
}

// Names of variables.
const (
	tieringVar  = tierenv.TieringVariable
	localVar    = tierenv.LocalVariable
	localGBVar  = tierenv.LocalGBVariable
	remoteVar   = tierenv.RemoteVariable
	remoteGBVar = tierenv.RemoteGBVariable
	keyFileVar  = tierenv.KeyFileVariable
)

// known are the variables with the prefixes of ours, by their ends.
var known = map[string][]string{
	"OLLAMA_KV_": {
		"TIERING", "TIER_LOCAL", "TIER_LOCAL_GB", "TIER_REMOTE", "TIER_REMOTE_GB", "TIER_KEY_FILE", "TIER_RAM_GB", "TIER_WARM_GB",
		"TIER_WRITE_GB_PER_DAY", "TIER_SHARE_GB_PER_DAY", "TIER_EVICTION", "TIER_COMPRESS", "TIER_COLD_TYPE", "TIER_NAMESPACE", "TIER_TENANTS_FILE", "TIER_PAGE_TOKENS", "TIER_REUSE", "TIER_SPLIT", "TIER_TEST",
		"INSTANCE_ID", "METRICS_ADDR",
		"CACHE_TYPE", // Ollama's own
	},
	"OLLAMA_PAGED_": {"AFTER", "ATTN", "CHUNK_SIZE", "HOST_GB", "VRAM_GB", "CPU_WORKERS", "SELECT", "SPILL_DIR", "SPILL_GB"},
}

// unknownName reports whether a name looks like one of ours and is none.
func unknownName(name string) bool {
	for prefix, ends := range known {
		if end, ok := strings.CutPrefix(name, prefix); ok {
			return !slices.Contains(ends, end)
		}
	}
	return false
}

type settings struct {
	tierenv.Config
	on, asked bool // asked: on, or a value that cannot be read
	given     bool // the local directory is named, and no default
	bad       []tierenv.BadValue
	unknown   []string
}

func (s settings) budget(tier string) int64 {
	if tier == telemetry.PlaceRemote {
		return s.RemoteBytes
	}
	return s.LocalBytes
}

// value reads a variable as Ollama does.
func value(set map[string]string, name string) string { return env.Trim(set[name]) }

// settingsOf reads variables as their server does.
func settingsOf(set map[string]string, home string) settings {
	s := settings{given: value(set, localVar) != ""}
	usual := ""
	if home != "" {
		usual = filepath.Join(home, filepath.FromSlash(tierenv.DefaultRoot))
	}
	s.Config, s.on, s.bad = tierenv.Strict(func(name string) string { return value(set, name) }, usual)
	s.asked = s.on || slices.ContainsFunc(s.bad, func(b tierenv.BadValue) bool { return b.Variable == tieringVar })
	for name := range set {
		if unknownName(name) {
			s.unknown = append(s.unknown, name)
		}
	}
	slices.Sort(s.unknown)
	return s
}
