package install

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
)

// fault is why an installation does not work.
type fault struct {
	why  string
	cure string // the command line that helps, "" where why says what does
}

func (f fault) String() string {
	if f.cure == "" {
		return f.why
	}
	return f.why + "; run " + f.cure
}

// trouble is the state of a folder, and what is wrong. Without an installation its cure is to install.
func (m *Machine) trouble(o Ollama, f folder) (state, fault) {
	s, why, verb := f.state()
	if s == None {
		verb = "install"
	}
	if verb == "" {
		return s, fault{why: why}
	}
	return s, fault{why, m.again(verb, o)}
}

func (m *Machine) withSudo() string { return machine.Command(append([]string{"sudo"}, m.Line...)...) }

// restartOf is the command line that restarts a service.
func (m *Machine) restartOf(u machine.Service) string {
	return m.asRoot("systemctl", "restart", u.Name)
}

// again is the command line that installs kvtier for an Ollama, or removes it.
func (m *Machine) again(verb string, o Ollama) string {
	if o.Service != "" {
		return m.asRoot(m.kvtier(o), "ollama", verb, "--service", o.Service)
	}
	prefix := strings.TrimSuffix(o.Folder, "/lib/ollama")
	if o.Executable != "" {
		prefix = strings.TrimSuffix(filepath.Dir(o.Executable), "/bin")
	}
	line := []string{m.kvtier(o), "ollama", verb, "--prefix", prefix}
	if m.needsRoot(o.Folder) {
		return m.toChange(o.Folder, line...)
	}
	return machine.Command(line...)
}

// ownerOf is the account of a folder's owner, root's where it is not known.
func (m *Machine) ownerOf(dir string) machine.Account {
	f, err := m.System.Stat(dir)
	if owner, known := m.System.Account(strconv.Itoa(f.UID)); err == nil && known {
		return owner
	}
	return machine.Account{}
}

// toChange is a command line that changes a folder, for the user who asks: root changes none of another user's.
func (m *Machine) toChange(dir string, line ...string) string {
	switch owner := m.ownerOf(dir); owner.UID {
	case 0, -1:
		return m.asRoot(line...)
	case cmp.Or(m.Sudo, m.UID):
		return machine.Command(line...)
	default:
		return machine.Command(append([]string{"sudo", "-u", owner.Name}, line...)...)
	}
}

// needsRoot reports whether the user who asks, whom this program may be root for, needs sudo to change a folder.
func (m *Machine) needsRoot(folder string) bool {
	if m.Sudo == 0 {
		return m.writable(folder) != nil
	}
	f, err := m.System.Stat(folder)
	return err != nil || f.UID != m.Sudo
}

// asRoot is a command line that only root may run, with sudo where the user who asks is another one.
func (m *Machine) asRoot(line ...string) string {
	if m.UID != 0 || m.Sudo != 0 {
		line = append([]string{"sudo"}, line...)
	}
	return machine.Command(line...)
}

// kvtier is the program that a person calls: this one, or one in PATH where this one stands in the place of
// llama-server. It is a path, because sudo has a PATH of its own.
func (m *Machine) kvtier(o Ollama) string {
	if len(m.Line) > 0 && !strings.HasSuffix(m.Line[0], ServerName) {
		return m.Line[0]
	}
	for _, path := range append([]string{programOf(o.Folder)}, m.commands()...) {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return "kvtier"
}
