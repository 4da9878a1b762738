//go:build unix

package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// Contents of files. A first line "#!kvtier VERSION" makes a file ours.
const (
	stockServer = "\x7fELF stock llama-server\n"
	nextServer  = "\x7fELF stock llama-server of another release\n"
	ourServer   = "#!kvtier 0.1.0\n"
	newServer   = "#!kvtier 0.2.0\n"
)

// system is this machine with other programs.
type system struct {
	machine.Here
	os    string
	owner *int   // of all files
	home  string // of this user
	path  string // PATH
	find  func(name string) (string, error)
	run   func(ctx context.Context, variables []string, name string, args ...string) (string, error)
}

func (s *system) Stat(path string) (machine.File, error) {
	f, err := s.Here.Stat(path)
	f.UID = *s.owner
	return f, err
}
func (s *system) OS() string                       { return s.os }
func (s *system) User() machine.Account            { return machine.Account{Home: s.home} }
func (s *system) Variables() map[string]string     { return map[string]string{"PATH": s.path} }
func (s *system) Find(name string) (string, error) { return s.find(name) }
func (s *system) Run(ctx context.Context, variables []string, name string, args ...string) (string, error) {
	return s.run(ctx, variables, name, args...)
}

// world is a machine below a directory of its own.
type world struct {
	packaged bool // a package has kvtier in PATH
	*Machine
	sys  *system
	t    *testing.T
	dir  string
	ran  []string // programs
	show map[string]string

	answers string // the version that the server says, "" does not answer
	later   string // a variable of another drop-in
	broken  string // a program whose run fails
	says    string // ollama --version
	owner   int    // of all files
}

func newWorld(t *testing.T) *world {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	w := &world{t: t, dir: dir, says: "0.34.2"}
	w.sys = &system{os: "linux", owner: &w.owner, home: w.at("home/me"), path: "/usr/bin:" + w.at("usr/local/bin"), find: w.find, run: w.run}
	w.Machine = &Machine{
		System:   w.sys,
		Line:     []string{w.at("kit/kvtier"), "ollama", "install", "--root", "/a b"},
		Prefixes: []string{w.at("usr/local"), w.at("usr")},
		Base:     w.at("usr/local/lib/kvtier"), Bin: w.at("usr/local/bin"), Units: units(w.at("etc/systemd/system")), State: w.at("var/lib"), Logs: w.at("var/log"), Sudoers: w.at("etc/sudoers.d"),
		Proc: w.at("proc"), Booted: w.at("run"),
		Version: w.version, Program: w.program, Access: tierenv.Writable,
	}
	w.write("kit/kvtier", ourServer, 0o755)
	return w
}

func (w *world) at(path string) string { return filepath.Join(w.dir, path) }

// write writes a file below the directory.
func (w *world) write(path, content string, mode fs.FileMode) {
	w.t.Helper()
	require.NoError(w.t, os.MkdirAll(filepath.Dir(w.at(path)), 0o755))
	require.NoError(w.t, os.WriteFile(w.at(path), []byte(content), 0o600))
	require.NoError(w.t, os.Chmod(w.at(path), mode))
}

func (w *world) read(path string) string {
	w.t.Helper()
	text, err := os.ReadFile(w.at(path))
	require.NoError(w.t, err)
	return string(text)
}

// tarball unpacks Ollama below a prefix.
func (w *world) tarball(prefix, server string) {
	w.write(prefix+"/bin/ollama", "#!ollama\n", 0o755)
	w.write(prefix+"/lib/ollama/libggml-base.so", "library\n", 0o644)
	w.write(prefix+"/lib/ollama/llama-server", server, 0o755)
}

// service makes a service that runs the Ollama of a prefix, as Ollama's own script does.
func (w *world) service(prefix string) {
	w.UID = 0
	w.answers = "0.34.2"
	for _, dir := range []string{w.State, w.Logs} {
		require.NoError(w.t, os.MkdirAll(dir, 0o755))
	}
	w.write("proc/7/environ", "OLLAMA_KV_TIERING=1\x00HOME=/usr/share/ollama\x00", 0o644)
	w.write("etc/systemd/system/ollama.service", "[Service]\n", 0o644)
	me, err := user.Current()
	require.NoError(w.t, err)
	w.show = map[string]string{
		"LoadState": "loaded", "ActiveState": "active", "MainPID": "7", "User": me.Username, "ProtectHome": "no", "NeedDaemonReload": "no",
		"ExecStart":   fmt.Sprintf("{ path=%s ; argv[]=%[1]s serve ; ignore_errors=no ; pid=7 }", w.at(prefix+"/bin/ollama")),
		"Environment": `OLLAMA_HOST=0.0.0.0 "PATH=/usr/bin:/x y"`,
	}
}

func (w *world) find(name string) (string, error) {
	if name == "systemctl" && w.show != nil {
		return "/usr/bin/systemctl", nil
	}
	if name == "kvtier" && w.packaged {
		return w.at("usr/bin/kvtier"), nil
	}
	return "", exec.ErrNotFound
}

func (w *world) run(_ context.Context, variables []string, name string, args ...string) (string, error) {
	line := strings.TrimPrefix(name, w.dir) + " " + strings.Join(args, " ")
	switch {
	case name == w.broken:
		return "", fmt.Errorf("it is broken: %w", fs.ErrPermission)
	case strings.HasPrefix(line, "systemctl show "):
		var b strings.Builder
		for key, value := range w.show {
			if key == "Environment" {
				value += w.ofDropIn() + " " + w.later
			}
			fmt.Fprintf(&b, "%s=%s\n", key, value)
		}
		return b.String(), nil
	case strings.HasSuffix(name, "/ollama"):
		return "Warning: could not connect to a running Ollama instance\nWarning: client version is " + w.says + "\n", nil
	}
	w.ran = append(w.ran, line)
	if strings.HasPrefix(line, "systemctl restart") {
		w.mount()
	}
	return "", nil
}

// ofDropIn are the variables that systemd reads in our drop-in.
func (w *world) ofDropIn() string {
	text, err := os.ReadFile(w.Units.dropIn(machine.DefaultService))
	if err != nil {
		return ""
	}
	var list string
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "Environment="); ok {
			list += " " + strings.TrimSpace(v)
		}
	}
	return list
}

// mount shows the service's process the files that systemd would mount for it.
func (w *world) mount() {
	require.NoError(w.t, os.RemoveAll(w.at("proc/7/root")))
	text, err := os.ReadFile(w.Units.dropIn(machine.DefaultService))
	if err != nil {
		return
	}
	for _, dir := range []string{w.State, w.Logs} { // StateDirectory and LogsDirectory
		require.NoError(w.t, os.MkdirAll(filepath.Join(dir, stateName), 0o755))
	}
	for _, line := range strings.Split(string(text), "\n") {
		bind, ok := strings.CutPrefix(line, "BindReadOnlyPaths=-")
		if !ok {
			continue
		}
		parts := strings.Split(bind, ":")
		to := filepath.Join(w.at("proc/7/root"), parts[1])
		require.NoError(w.t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(w.t, os.Symlink(parts[0], to))
	}
}

func (w *world) version(context.Context, string) (string, error) {
	if w.answers == "" {
		return "", errors.New("connection refused")
	}
	return w.answers, nil
}

func (w *world) program(path string) (string, bool) {
	text, err := os.ReadFile(path)
	first, _, _ := strings.Cut(string(text), "\n")
	v, own := strings.CutPrefix(first, "#!kvtier ")
	return v, err == nil && own
}

// planned makes a plan to install or remove.
func (w *world) planned(verb string, opt Options) (*Plan, error) {
	if verb == "remove" {
		return w.Remove(w.t.Context(), opt.Choice)
	}
	opt.Program = w.at("kit/kvtier")
	return w.Install(w.t.Context(), opt)
}

// plan makes a plan that can be made.
func (w *world) plan(verb string, opt Options) *Plan {
	w.t.Helper()
	p, err := w.planned(verb, opt)
	require.NoError(w.t, err)
	return p
}

// do makes and carries out a plan.
func (w *world) do(verb string, opt Options) error {
	p, err := w.planned(verb, opt)
	if err != nil {
		return err
	}
	return p.Do(w.t.Context(), func(Step) {})
}

func (w *world) install(opt Options) error { return w.do("install", opt) }
func (w *world) remove() error             { return w.do("remove", Options{}) }

// serve makes process 9 a server that runs a program.
func (w *world) serve(program string) {
	w.write("proc/9/cmdline", "ollama\x00serve\x00", 0o644)
	require.NoError(w.t, os.Symlink(w.at(program), w.at("proc/9/exe")))
}

// breakOff ends do before its n-th change of a file, and reports whether it has so many.
func (w *world) breakOff(n int, do func() error) bool {
	w.t.Helper()
	return w.failFrom(n, math.MaxInt, do) != nil
}

// failOnce has the n-th change of a file fail, and no other, and reports whether do has so many. Its error says
// that all is as before.
func (w *world) failOnce(n int, do func() error) bool {
	w.t.Helper()
	err := w.failFrom(n, n, do)
	if err != nil {
		require.Regexp(w.t, "is again as it was|runs its own llama-server again", err.Error())
		require.NotContains(w.t, err.Error(), "taking it back failed")
	}
	return err != nil
}

// failFrom has changes of files fail, from one to another, and returns do's error, which is theirs.
func (w *world) failFrom(first, last int, do func() error) error {
	w.t.Helper()
	full, n := errors.New("no space left"), 0
	w.Change = func() error {
		if n++; n >= first && n <= last {
			return full
		}
		return nil
	}
	err := do()
	w.Change = nil
	if err != nil {
		require.ErrorIs(w.t, err, full)
	}
	return err
}

// tree lists all files below the directory except processes: mode, name, and content.
func (w *world) tree() []string {
	var list []string
	require.NoError(w.t, filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == w.at("proc") {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var content string
		switch {
		case info.Mode().IsRegular():
			var text []byte
			text, err = os.ReadFile(path)
			content = strings.TrimSpace(string(text))
		case info.Mode()&fs.ModeSymlink != 0:
			content, err = os.Readlink(path)
		}
		list = append(list, fmt.Sprintf("%s %s %s", info.Mode(), strings.TrimPrefix(path, w.dir), content))
		return err
	}))
	return list
}

// shown is a plan as text, with paths from the directory.
func (w *world) shown(p *Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(s.Text + "\n")
		for line := range strings.Lines(s.Shows) {
			b.WriteString("| " + line)
		}
	}
	for _, hint := range p.Hints {
		b.WriteString(hint + "\n")
	}
	for _, last := range p.Last {
		b.WriteString("Then: " + last + "\n")
	}
	return strings.ReplaceAll(b.String(), w.dir, "")
}

// state is the only status.
func (w *world) state() Status {
	w.t.Helper()
	all, err := w.Status(w.t.Context(), Choice{}, "")
	require.NoError(w.t, err)
	require.Len(w.t, all, 1)
	return all[0]
}
