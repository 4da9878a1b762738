package install

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/kvtier/kvtier/internal/machine"
)

// Ollama is an installation of Ollama.
type Ollama struct {
	Executable string // with symbolic links resolved, as Ollama resolves them
	Folder     string // of llama-server; "" if this release has none
	Service    string // the systemd unit that runs it, or ""

	unit machine.Service
}

// Choice narrows the search for Ollama down.
type Choice struct {
	Prefix  string // the folder above bin/ollama, or beside ollama; "" looks everywhere
	Service string // the systemd unit
}

// DefaultService is the unit that Ollama's own installer makes.
const DefaultService = machine.DefaultService

// Search returns the installations of Ollama, that of the service first.
func (m *Machine) Search(ctx context.Context, c Choice) ([]Ollama, error) {
	var found []Ollama
	add := func(executable string, u machine.Service) (at int) {
		path := machine.Executable(m.System, executable)
		if at := slices.IndexFunc(found, func(o Ollama) bool { return o.Executable == path }); at >= 0 || path == "" {
			return at
		}
		found = append(found, Ollama{Executable: path, Folder: machine.ServerFolder(m.System, path), Service: u.Name, unit: u})
		return len(found) - 1
	}
	u, err := m.unit(ctx, c.Service)
	if err != nil {
		return nil, err
	}
	if u.Name != "" {
		add(u.Executable, u)
	}
	if c.Prefix != "" {
		prefix, err := filepath.Abs(c.Prefix)
		if err != nil {
			return nil, fmt.Errorf("find --prefix %s: %w", c.Prefix, err)
		}
		for _, name := range []string{"bin/ollama", "ollama"} {
			if at := add(filepath.Join(prefix, name), machine.Service{}); at >= 0 {
				return found[at : at+1], nil
			}
		}
		return nil, fmt.Errorf("%s has neither bin/ollama nor ollama; give the folder that Ollama's archive was unpacked into as --prefix", prefix)
	}
	if path, err := m.System.Find("ollama"); err == nil && filepath.IsAbs(path) {
		add(path, machine.Service{})
	}
	for _, prefix := range m.Prefixes {
		add(filepath.Join(prefix, "bin", "ollama"), machine.Service{})
	}
	return found, nil
}

// oldest is the first release of Ollama with llama-server.
const oldest = "v0.30.0"

// versionLine is a line of ollama --version.
var versionLine = regexp.MustCompile(`version is v?(\d\S*)`)

// version returns Ollama's version, "" if it cannot be found out.
func (m *Machine) version(ctx context.Context, o Ollama) string {
	if !m.trusted(o.Executable) {
		return ""
	}
	// No server answers at this address, so the program says its own version.
	out, err := m.System.Run(ctx, []string{"OLLAMA_HOST=127.0.0.1:1"}, o.Executable, "--version")
	found := versionLine.FindStringSubmatch(out)
	if err != nil || found == nil {
		return ""
	}
	return found[1]
}
