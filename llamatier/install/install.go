package install

import (
	"cmp"
	"context"
	"errors"
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

// Options say how to install.
type Options struct {
	Choice
	Program   string            // the file of this program
	Variables map[string]string // for the service
	Reset     []string          // variables of an earlier installation that get their defaults again
}

// Install plans an installation.
func (m *Machine) Install(ctx context.Context, opt Options) (*Plan, error) {
	o, err := m.one(ctx, opt.Choice)
	if err != nil {
		return nil, err
	}
	if err := installable(o); err != nil {
		return nil, err
	}
	new, err := m.source(opt.Program)
	if err != nil {
		return nil, err
	}
	p := &Plan{Ollama: o, lock: m.lockOf(o)}
	if o.Service != "" {
		if err := m.installService(ctx, p, new, opt); err != nil {
			return nil, err
		}
	} else {
		if len(opt.Variables)+len(opt.Reset) > 0 {
			return nil, errors.New("no systemd service runs this Ollama, so nobody can give it variables; set them where the server is started, and leave --root, --local-gb, --remote, --remote-gb, --metrics, --group and --reset out")
		}
		if services := m.Units.mounted(o.Folder); len(services) > 0 {
			return nil, fmt.Errorf("%s mounts another file over llama-server in %s; run %s first", services[0], o.Folder, m.again("remove", Ollama{Service: services[0]}))
		}
		if err := m.installFile(p, new); err != nil {
			return nil, err
		}
		if len(p.Steps) > 0 && m.process(o.Executable) != 0 {
			p.hint("Ollama is running: models that are loaded keep the stock llama-server until they are unloaded.")
		}
		m.sayCommand(p, new.path)
	}
	if m.System.OS() == "darwin" {
		p.hint("kvtier is built for macOS and stores pages there, but nobody has run it on macOS yet.")
	}
	return p, nil
}

// installable returns the reason why an Ollama cannot be changed, or nil.
func installable(o Ollama) error {
	switch {
	case strings.Contains(o.Executable, ".app/Contents/"):
		return fmt.Errorf("%s is part of a signed application, which a changed file would break; unpack Ollama's archive ollama-darwin.tgz elsewhere and give that folder as --prefix", o.Executable)
	case o.Folder == "":
		return fmt.Errorf("%s has no llama-server, which Ollama has from %s on; install the newest Ollama, or build a patched release, as docs/install.md says", o.Executable, oldest)
	}
	return nil
}

func (m *Machine) one(ctx context.Context, c Choice) (Ollama, error) {
	found, err := m.Search(ctx, c)
	switch {
	case err != nil:
		return Ollama{}, err
	case len(found) == 1 || len(found) > 1 && c.Service != "":
		return found[0], nil
	case len(found) == 0:
		return Ollama{}, m.noOllama(ctx)
	}
	var paths []string
	for _, o := range found {
		paths = append(paths, o.Executable)
	}
	return Ollama{}, fmt.Errorf("there are several: %s; say which one with --prefix", list(paths))
}

// noOllama is the error where none was found. One may run in a container.
func (m *Machine) noOllama(ctx context.Context) error {
	err := fmt.Errorf("no Ollama is installed in %s; give the folder above bin/ollama as --prefix", list(m.Prefixes))
	if containers := machine.Containers(ctx, m.System); len(containers) > 0 {
		err = fmt.Errorf("%w. The container %s runs Ollama: docs/install.md has the lines for its image", err, containers[0].Name)
	}
	return err
}

// Remove plans the removal. Pages stay.
func (m *Machine) Remove(ctx context.Context, c Choice) (*Plan, error) {
	o, err := m.one(ctx, c)
	if err != nil {
		if p, e := m.removeOrphan(c); p != nil || e != nil {
			return p, e
		}
		return nil, err
	}
	p := &Plan{Ollama: o, lock: m.lockOf(o)}
	if o.Service != "" {
		if err := m.removeService(p); err != nil {
			return nil, err
		}
	}
	if o.Folder != "" {
		if err := m.removeFile(p); err != nil {
			return nil, err
		}
	}
	if o.Service == "" && len(p.Steps) > 0 {
		if m.process(o.Executable) != 0 {
			p.hint("Ollama is running: models that are loaded keep kvtier's llama-server until they are unloaded.")
		}
		dir, log := m.kept(o)
		p.hint("Pages in %s and the log %s stay. Pages hold conversations: remove both when nobody needs them.", dir, log)
	}
	return p, nil
}

// kept names the directory of pages and the log of a server that is no service.
func (m *Machine) kept(o Ollama) (pages, log string) {
	set := machine.VariablesOf(m.System, m.Proc, m.process(o.Executable))
	home := cmp.Or(set["HOME"], "~")
	pages = env.Trim(set[tierenv.LocalVariable])
	if set == nil {
		pages = cmp.Or(env.Value(tierenv.LocalVariable), filepath.Join(home, tierenv.DefaultRoot)+" of the server's user (or in its "+tierenv.LocalVariable+")")
	}
	return cmp.Or(pages, filepath.Join(home, tierenv.DefaultRoot)), cmp.Or(env.Trim(set[LogVariable]), logIn(home))
}

// removeOrphan plans the removal from a service that is gone, or runs no Ollama any more. It
// returns no plan if there is none.
func (m *Machine) removeOrphan(c Choice) (*Plan, error) {
	name := cmp.Or(c.Service, machine.DefaultService)
	if !strings.Contains(name, ".") { // as machine.FindService reads it
		name += ".service"
	}
	_, there, err := m.Units.read(name)
	if _, e := os.Lstat(m.Base); err != nil || !there && e != nil || c.Prefix != "" {
		return nil, err
	}
	o := Ollama{Service: name, unit: machine.Service{Name: name}}
	p := &Plan{Ollama: o, lock: m.lockOf(o)}
	return p, m.removeService(p)
}

// Status is the state of an installation.
type Status struct {
	Ollama     string   `json:"ollama"` // the version, "" if it is not known
	Executable string   `json:"executable"`
	Service    string   `json:"service"` // "" without
	Folder     string   `json:"folder"`  // of llama-server, "" without
	State      state    `json:"state"`
	Kvtier     string   `json:"kvtier"` // the version of our llama-server, "" without
	URL        string   `json:"url"`
	Answers    bool     `json:"answers"`
	Tiering    string   `json:"tiering"` // on, off, or unknown
	Pages      string   `json:"pages"`   // the directory, "" if it is not known
	Log        string   `json:"log"`     // the file, "" if it is not known
	LastLog    string   `json:"last_log"`
	Hints      []string `json:"hints"` // sentences about everything that needs attention
	Cure       string   `json:"cure"`  // the command line that helps, "" where none is known
}

// Bad reports whether an installation needs attention.
func (s Status) Bad() bool {
	return slices.Contains([]state{Interrupted, Replaced, Broken}, s.State) || s.State == Installed && s.Tiering == "off"
}

// withRunning adds the installations of servers that this user, the one who ran sudo, or root runs, wherever they
// are. Another user says by a process and its files whatever he likes. A program runs only if it is trusted.
func (m *Machine) withRunning(found []Ollama) []Ollama {
	for _, p := range machine.Processes(m.System, m.Proc) {
		exe, err := m.System.Resolve(filepath.Join(m.Proc, strconv.Itoa(p.PID), "exe"))
		if err != nil || filepath.Base(exe) != "ollama" || !slices.Contains([]int{0, m.UID, m.Sudo}, p.UID) {
			continue
		}
		path := machine.Executable(m.System, exe)
		known := slices.ContainsFunc(found, func(o Ollama) bool { return o.Executable == path })
		if path != "" && !known && len(found) < machine.ServersMax {
			found = append(found, Ollama{Executable: path, Folder: machine.ServerFolder(m.System, path)})
		}
	}
	return found
}

// Status looks at all installations, those of servers that run among them.
func (m *Machine) Status(ctx context.Context, c Choice, host string) ([]Status, error) {
	found, err := m.Search(ctx, c)
	if err != nil {
		return nil, err
	}
	if c == (Choice{}) {
		found = m.withRunning(found)
	}
	if len(found) == 0 {
		return nil, m.noOllama(ctx)
	}
	var all []Status
	for _, o := range found {
		all = append(all, m.status(ctx, o, host))
	}
	return all, nil
}
