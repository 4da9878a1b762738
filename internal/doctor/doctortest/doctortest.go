// Package doctortest is a machine for tests of package doctor, which has every fault that it is
// told to have.
package doctortest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// File is a file or a directory.
type File struct {
	Text string
	Mode fs.FileMode
	UID  int
	Link string // of a symbolic link: its target
	Err  error  // of every operation
}

// Machine is a machine in memory. Its fields may change until it is looked at.
type Machine struct {
	System   string
	Time     time.Time
	Me       doctor.Account
	Accounts []doctor.Account
	Set      map[string]string
	Programs map[string]string // paths by name
	Outputs  map[string]string // of commands, by the beginning of their line
	Files    map[string]*File
	Disks    map[string]doctor.Disk // by the directory that they are mounted on
	Probes   map[string]func() (doctor.Probe, error)
	Builds   map[string]doctor.Build
	Models   map[string]string // architectures by path
	Statuses []install.Status
	States   map[string]telemetry.State
	StateErr error
	Hung     map[string]bool // paths below which nothing answers
	Release  chan struct{}   // closed: the hung operations end

	mu      sync.Mutex
	changed []string
}

var _ doctor.Environment = (*Machine)(nil)

// Changed lists the directories in which a file was made.
func (m *Machine) Changed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.changed)
}

// Write adds a file with the directories above it.
func (m *Machine) Write(name, text string, uid int) *File {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if m.Files[dir] == nil {
			m.Files[dir] = &File{Mode: fs.ModeDir | 0o755}
		}
		if dir == "/" {
			break
		}
	}
	m.Files[name] = &File{Text: text, Mode: 0o600, UID: uid}
	return m.Files[name]
}

// Dir adds a directory of mode 0700.
func (m *Machine) Dir(name string, uid int) *File {
	f := m.Write(name, "", uid)
	f.Mode = fs.ModeDir | 0o700
	return f
}

// wait hangs for paths that do not answer.
func (m *Machine) wait(name string) {
	for hung := range m.Hung {
		if name == hung || strings.HasPrefix(name, hung+"/") {
			<-m.Release
		}
	}
}

func (m *Machine) file(op, name string) (*File, error) {
	m.wait(name)
	f := m.Files[name]
	if f == nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	if f.Err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: f.Err}
	}
	return f, nil
}

func (m *Machine) OS() string           { return m.System }
func (m *Machine) Now() time.Time       { return m.Time }
func (m *Machine) User() doctor.Account { return m.Me }

func (m *Machine) Account(name string) (doctor.Account, bool) {
	return m.account(func(a doctor.Account) bool { return a.Name == name })
}

func (m *Machine) AccountOf(uid int) (doctor.Account, bool) {
	return m.account(func(a doctor.Account) bool { return a.UID == uid })
}

func (m *Machine) account(is func(doctor.Account) bool) (doctor.Account, bool) {
	if at := slices.IndexFunc(m.Accounts, is); at >= 0 {
		return m.Accounts[at], true
	}
	return doctor.Account{}, false
}

func (m *Machine) Variables() map[string]string { return m.Set }

func (m *Machine) Find(program string) (string, error) {
	if at, ok := m.Programs[program]; ok {
		return at, nil
	}
	return "", errors.New(program + " is not there")
}

func (m *Machine) Run(ctx context.Context, program string, args ...string) (string, error) {
	line := strings.Join(append([]string{program}, args...), " ")
	if m.Hung[program] {
		<-ctx.Done()
		return "", ctx.Err()
	}
	for begin, out := range m.Outputs {
		if strings.HasPrefix(line, begin) {
			return out, nil
		}
	}
	return "", errors.New(line + " failed")
}

func (m *Machine) Read(name string, most int) ([]byte, error) {
	f, err := m.file("read", name)
	if err != nil {
		return nil, err
	}
	if !f.Mode.IsRegular() {
		return nil, errors.New(name + " is no file")
	}
	return []byte(f.Text[:min(most, len(f.Text))]), nil
}

func (m *Machine) List(name string, most int) ([]string, error) {
	if _, err := m.file("list", name); err != nil {
		return nil, err
	}
	var names []string
	for file := range m.Files {
		if path.Dir(file) == name && file != "/" {
			names = append(names, path.Base(file))
		}
	}
	slices.Sort(names)
	return names[:min(most, len(names))], nil
}

func (m *Machine) Stat(name string) (doctor.File, error) {
	f, err := m.file("lstat", name)
	if err != nil {
		return doctor.File{}, err
	}
	return doctor.File{Mode: f.Mode, UID: f.UID}, nil
}

func (m *Machine) Resolve(name string) (string, error) {
	f, err := m.file("readlink", name)
	if err != nil {
		return "", err
	}
	if f.Link != "" {
		return f.Link, nil
	}
	return name, nil
}

func (m *Machine) Disk(name string) (doctor.Disk, error) {
	m.wait(name)
	best := "-"
	for point := range m.Disks {
		if (name == point || point == "/" || strings.HasPrefix(name, point+"/")) && (best == "-" || len(point) > len(best)) {
			best = point
		}
	}
	if best == "-" {
		return doctor.Disk{}, errors.New("no disk")
	}
	return m.Disks[best], nil
}

func (m *Machine) Probe(dir string) (doctor.Probe, error) {
	m.wait(dir)
	m.mu.Lock()
	m.changed = append(m.changed, dir)
	m.mu.Unlock()
	if probe := m.Probes[dir]; probe != nil {
		return probe()
	}
	return m.Probed(), nil
}

// Probed is the probe of a disk with this machine's clock.
func (m *Machine) Probed() doctor.Probe {
	return doctor.Probe{Before: m.Time, Modified: m.Time, After: m.Time}
}

func (m *Machine) Build(executable string) (doctor.Build, error) {
	b, ok := m.Builds[executable]
	if !ok {
		return b, errors.New("not a program of Go")
	}
	return b, nil
}

func (m *Machine) Model(name string) (string, error) {
	arch, ok := m.Models[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return arch, nil
}

func (m *Machine) Installed(context.Context) ([]install.Status, error) { return m.Statuses, nil }

func (m *Machine) Telemetry(_ context.Context, root string) (telemetry.State, error) {
	if m.StateErr != nil {
		return telemetry.State{}, m.StateErr
	}
	s, ok := m.States[root]
	if !ok {
		return s, errors.New("no collector has run for " + root)
	}
	return s, nil
}
