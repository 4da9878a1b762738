package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
)

// unit asks systemd for a service that runs Ollama. Where systemd does not run, and where there is
// no such service, the unit has no name.
func (m *Machine) unit(ctx context.Context, name string) (machine.Service, error) {
	none := machine.Service{}
	s, err := machine.FindService(ctx, m.System, name)
	_, running := os.Stat(m.Booted)
	switch {
	case errors.Is(err, machine.ErrNoSystemd):
		err = fmt.Errorf("%w, so there is no %s; leave --service out", err, s.Name)
	case err != nil && running == nil:
		return none, fmt.Errorf("ask systemd for %s: %w; run %s", s.Name, err, m.withSudo())
	case (err != nil || !s.Loaded()) && running != nil:
		err = fmt.Errorf("systemd does not run here, so there is no %s; leave --service out", s.Name)
	case err != nil || !s.Loaded():
		err = fmt.Errorf("systemd has no service %s; systemctl list-units lists the services", s.Name)
	case filepath.Base(s.Executable) != "ollama":
		err = fmt.Errorf("%s runs %s, not ollama; give the folder above bin/ollama as --prefix, and set the variables yourself", s.Name, s.Executable)
	default:
		return s, nil
	}
	if name == "" {
		return none, nil // nobody named it
	}
	return none, err
}

// unitPath matches the paths that need no quotes in a unit.
var unitPath = regexp.MustCompile(`^/[A-Za-z0-9/._+@~-]*$`)

type dropIn struct {
	variables []string // "NAME=value"
	sockets   bool     // the service may use only kinds of sockets that are listed
	folder    string   // Ollama's
	base      string
	local     string // the directory of pages
	pages     string // the same if it is outside of the service's own directory, or ""
	earlier   string // the directory of pages in the drop-in before, or ""
	group     string // that may read, or ""
}

// Names below the folders of systemd, for this program.
const (
	dropInName = "kvtier.conf"
	stateName  = "kvtier" // below Machine.State and Machine.Logs
)

const dropInFirst = "# Written by kvtier ollama install. kvtier ollama remove deletes it.\n"

// String is the text of the drop-in. systemd sorts mounts by their destinations, so their order must not
// matter: the folder is mounted without the mounts below it (norbind), and shows the real llama-server also
// where the other mount came first. A file that is missing ("-") leaves Ollama as it is.
func (d dropIn) String() string {
	var b strings.Builder
	b.WriteString(dropInFirst + "[Service]\n")
	for _, v := range d.variables {
		fmt.Fprintf(&b, "Environment=\"%s\"\n", strings.ReplaceAll(v, "%", "%%"))
	}
	fmt.Fprintf(&b, "StateDirectory=%s\nLogsDirectory=%[1]s\n", stateName)
	if d.pages != "" {
		fmt.Fprintf(&b, "ReadWritePaths=-%s\n", d.pages)
	}
	if d.sockets {
		b.WriteString("RestrictAddressFamilies=AF_UNIX\n")
	}
	fmt.Fprintf(&b, "# Ollama's folder with the real %s, then ours in its place.\n", ServerName)
	fmt.Fprintf(&b, "BindReadOnlyPaths=-%s:%s:norbind\n", d.folder, filepath.Join(d.base, realFolder))
	fmt.Fprintf(&b, "BindReadOnlyPaths=-%s:%s\n", filepath.Join(d.base, ServerName), filepath.Join(d.folder, ServerName))
	return b.String()
}

// units is the folder of systemd where an administrator's files are.
type units string

func (u units) dropIn(service string) string {
	return filepath.Join(string(u), service+".d", dropInName)
}

// changed are the services that have our drop-in.
func (u units) changed() []string {
	names, _ := filepath.Glob(u.dropIn("*")) // the pattern is good
	for i, path := range names {
		names[i] = strings.TrimSuffix(filepath.Base(filepath.Dir(path)), ".d")
	}
	return names
}

// others are the services besides one that have our drop-in.
func (u units) others(service string) []string {
	return slices.DeleteFunc(u.changed(), func(name string) bool { return name == service })
}

// mounted are the services that have our drop-in for a folder.
func (u units) mounted(dir string) []string {
	return slices.DeleteFunc(u.changed(), func(service string) bool { return u.folder(service) != dir })
}

// place matches the line of our drop-in with the place of llama-server.
var place = regexp.MustCompile(`(?m)^BindReadOnlyPaths=-.*:(.*)/` + ServerName + `$`)

// folder is Ollama's in our drop-in of a service, or "".
func (u units) folder(service string) string {
	text, _ := os.ReadFile(u.dropIn(service)) // one that cannot be read has none
	if found := place.FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}

// group is the one in our drop-in of a service, or "".
func (u units) group(service string) string {
	set, _, _ := u.read(service) // one that cannot be read is not ours
	return set[GroupVariable]
}

// ourVariable matches a line of our drop-in.
var ourVariable = regexp.MustCompile(`(?m)^Environment="((?:OLLAMA_KV|KVTIER)_[A-Z_]+)=(.*)"$`)

// read returns the variables in our drop-in of a service, and whether there is one.
func (u units) read(service string) (map[string]string, bool, error) {
	path := u.dropIn(service)
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if !strings.HasPrefix(string(text), dropInFirst) {
		return nil, false, fmt.Errorf("%s was not written by kvtier; move it away", path)
	}
	set := make(map[string]string)
	for _, line := range ourVariable.FindAllStringSubmatch(string(text), -1) {
		set[line[1]] = strings.ReplaceAll(line[2], "%%", "%")
	}
	return set, true, nil
}
