// Package machinetest is a machine in memory, with every fault that it is told to have.
package machinetest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
)

// File is a file or a directory.
type File struct {
	Text string
	Mode fs.FileMode
	UID  int
	Link string // of a symbolic link: its target
	Err  error  // of every operation
}

// System is a system in memory. Its fields may change until it is looked at.
type System struct {
	Name     string // as runtime.GOOS
	Me       machine.Account
	Set      map[string]string // variables
	Accounts []machine.Account
	Programs map[string]string // paths by name
	Outputs  map[string]string // of commands, by the beginning of their line
	Files    map[string]*File
	Disks    map[string]machine.Disk // by the directory that they are mounted on
	Ours     map[string]bool         // programs with kvtier in them
	Hung     map[string]bool         // paths below which nothing answers, and programs
	Release  chan struct{}           // closed: the hung operations end
}

var _ machine.System = (*System)(nil)

// New is a Linux without files.
func New() *System {
	return &System{
		Name: "linux", Set: map[string]string{}, Disks: map[string]machine.Disk{}, Programs: map[string]string{}, Outputs: map[string]string{}, Files: map[string]*File{}, Ours: map[string]bool{},
		Hung: map[string]bool{}, Release: make(chan struct{}),
	}
}

// Write adds a file with the directories above it.
func (s *System) Write(name, text string, uid int) *File {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if s.Files[dir] == nil {
			s.Files[dir] = &File{Mode: fs.ModeDir | 0o755}
		}
		if dir == "/" {
			break
		}
	}
	s.Files[name] = &File{Text: text, Mode: 0o600, UID: uid}
	return s.Files[name]
}

// Dir adds a directory of mode 0700.
func (s *System) Dir(name string, uid int) *File {
	f := s.Write(name, "", uid)
	f.Mode = fs.ModeDir | 0o700
	return f
}

// Symlink adds a symbolic link.
func (s *System) Symlink(name, target string) {
	f := s.Write(name, "", 0)
	f.Mode, f.Link = fs.ModeSymlink|0o777, target
}

// Wait hangs for paths that do not answer.
func (s *System) Wait(name string) {
	for hung := range s.Hung {
		if name == hung || strings.HasPrefix(name, hung+"/") {
			<-s.Release
		}
	}
}

func (s *System) file(op, name string) (*File, error) {
	s.Wait(name)
	f := s.Files[name]
	if f == nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	if f.Err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: f.Err}
	}
	return f, nil
}

func (s *System) OS() string                   { return s.Name }
func (s *System) User() machine.Account        { return s.Me }
func (s *System) Variables() map[string]string { return s.Set }

func (s *System) Account(user string) (machine.Account, bool) {
	for _, a := range s.Accounts {
		if a.Name == user || strconv.Itoa(a.UID) == user {
			return a, true
		}
	}
	return machine.Account{}, false
}

func (s *System) Find(program string) (string, error) {
	if at, ok := s.Programs[program]; ok {
		return at, nil
	}
	return "", errors.New(program + " is not there")
}

func (s *System) Run(ctx context.Context, _ []string, program string, args ...string) (string, error) {
	line := strings.Join(append([]string{program}, args...), " ")
	if s.Hung[program] {
		<-ctx.Done()
		return "", ctx.Err()
	}
	for begin, out := range s.Outputs {
		if strings.HasPrefix(line, begin) {
			return out, nil
		}
	}
	return "", errors.New(line + " failed")
}

func (s *System) Read(name string, most int) ([]byte, error) {
	f, err := s.file("read", name)
	if err != nil {
		return nil, err
	}
	if !f.Mode.IsRegular() {
		return nil, errors.New(name + " is no file")
	}
	return []byte(f.Text[:min(most, len(f.Text))]), nil
}

func (s *System) List(name string, most int) ([]string, error) {
	if _, err := s.file("list", name); err != nil {
		return nil, err
	}
	var names []string
	for file := range s.Files {
		if path.Dir(file) == name && file != "/" {
			names = append(names, path.Base(file))
		}
	}
	slices.Sort(names)
	return names[:min(most, len(names))], nil
}

func (s *System) Stat(name string) (machine.File, error) {
	f, err := s.file("lstat", name)
	if err != nil {
		return machine.File{}, err
	}
	return machine.File{Mode: f.Mode, UID: f.UID, Size: int64(len(f.Text))}, nil
}

func (s *System) Resolve(name string) (string, error) {
	f, err := s.file("readlink", name)
	if err != nil {
		return "", err
	}
	if f.Link != "" {
		return f.Link, nil
	}
	return name, nil
}

func (s *System) Disk(name string) (machine.Disk, error) {
	s.Wait(name)
	for {
		if disk, ok := s.Disks[name]; ok {
			return disk, nil
		}
		if name == path.Dir(name) {
			return machine.Disk{}, errors.New("no disk")
		}
		name = path.Dir(name)
	}
}

func (s *System) Patched(executable string) bool { return s.Ours[executable] }
