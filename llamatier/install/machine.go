package install

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// Machine is the system on which Ollama is installed: its places, and the programs to ask.
type Machine struct {
	System machine.System
	UID    int      // who runs this program
	Sudo   int      // who ran sudo before it, or 0
	Line   []string // the command line of this program, its path first

	Prefixes []string // folders above bin/ollama and lib/ollama, without systemd
	Base     string   // the folder that an installation for a service makes for its files
	Bin      string   // a folder in PATH, where it also gets the name kvtier
	Units    units    // of systemd, where an administrator's files are
	State    string   // of services, below which pages are stored
	Logs     string   // of services
	Sudoers  string   // of files for sudo
	Proc     string
	Booted   string // a folder that exists where systemd runs

	// Version asks a server for its version.
	Version func(ctx context.Context, url string) (string, error)
	// Program tells our llama-server from other files.
	Program programs
	// Access returns an error if this user may not change a folder.
	Access func(dir string) error
	// Change is called before each change of a file, if it is set. Its error ends the plan.
	Change changes
}

// Here is the machine on which this program runs.
func Here() *Machine {
	sudo, _ := strconv.Atoi(os.Getenv("SUDO_UID"))
	return &Machine{
		System: machine.Here{}, UID: os.Geteuid(), Sudo: sudo, Line: append([]string{machine.Self()}, os.Args[1:]...),
		Prefixes: []string{"/usr/local", "/usr"},
		Base:     base, Bin: "/usr/local/bin", Units: "/etc/systemd/system", State: "/var/lib", Logs: "/var/log", Sudoers: "/etc/sudoers.d",
		Proc: "/proc", Booted: "/run/systemd/system",
		Version: serverVersion, Program: program, Access: tierenv.Writable,
	}
}

const base = "/usr/local/lib/kvtier"

// RealServer is the path of the real llama-server in a service, which [Machine.Base] holds a
// mount of Ollama's folder for.
const RealServer = base + "/" + realFolder + "/" + ServerName

// Names of files.
const (
	ServerName = machine.LlamaServer
	RealName   = machine.RealLlamaServer
	realFolder = "ollama"      // below Base
	newSuffix  = ".kvtier-new" // of a file that is not complete yet
	lockSuffix = ".lock"
)

// answerTimeout bounds the time of one question to a server.
const answerTimeout = 3 * time.Second

func serverVersion(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/version", nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var answer struct {
		Version string `json:"version"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, res.Body, answerMax)).Decode(&answer); err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", url, err)
	}
	return answer.Version, nil
}

// answerMax is the most that is read of a server's answer, in bytes.
const answerMax = 1 << 16

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

// Tried is the release of Ollama with which all tests run.
const Tried = "0.34.2"

var versionLine = regexp.MustCompile(`version is v?(\d\S*)`)

// version returns Ollama's version, "" if it cannot be found out.
func (m *Machine) version(ctx context.Context, o Ollama) string {
	program, ok := m.trusted(o.Executable)
	if !ok {
		return ""
	}
	// No server answers at this address, so the program says its own version.
	out, err := m.System.Run(ctx, []string{"OLLAMA_HOST=127.0.0.1:1"}, program, "--version")
	found := versionLine.FindStringSubmatch(out)
	if err != nil || found == nil {
		return ""
	}
	return found[1]
}
