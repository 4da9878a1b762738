package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/machine"
)

// Plan lists the steps of an installation or a removal.
type Plan struct {
	Ollama Ollama
	Steps  []Step
	Hints  []string // sentences for the person who decides about the plan
	Last   []string // sentences about what to do when it is carried out

	lock   string       // a file that exists while a plan for the same files is carried out
	cannot error        // the reason why this user cannot carry the plan out
	begin  func() error // comes before the first step, and may refuse
	// undo plans to take the steps back, if one fails. Its hints say what is there then.
	undo func(back *Plan) error
	keep []string // paths that undo makes as they were before the first step
	was  []saved  // what was there
	rest string   // the command line that takes back what undo could not
	seen bool     // systemd was told of the steps
	calm bool     // systemd need not be told
}

// Step is a part of a plan.
type Step struct {
	Text  string `json:"step"`            // an order, such as "write FILE"
	Shows string `json:"shows,omitempty"` // the content of the files that it writes, or ""
	do    func(context.Context) error
}

func (p *Plan) add(do func(context.Context) error, format string, args ...any) {
	p.Steps = append(p.Steps, Step{Text: fmt.Sprintf(format, args...), do: do})
}

func (p *Plan) and(do func(context.Context) error, format string, args ...any) {
	last := &p.Steps[len(p.Steps)-1]
	first := last.do
	last.do = func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		return do(ctx)
	}
	last.Text += ", " + fmt.Sprintf(format, args...)
}

// shows adds the content of a file to what the last step shows.
func (p *Plan) shows(content string) { p.Steps[len(p.Steps)-1].Shows += content }

func (p *Plan) hint(format string, args ...any) {
	p.Hints = append(p.Hints, fmt.Sprintf(format, args...))
}

func (p *Plan) last(format string, args ...any) {
	p.Last = append(p.Last, fmt.Sprintf(format, args...))
}

// Cannot returns the reason why this user cannot carry the plan out, or nil.
func (p *Plan) Cannot() error {
	if len(p.Steps) == 0 {
		return nil
	}
	return p.cannot
}

// Do carries the plan out. done is called after each step. If a step of an installation fails, all are taken back.
func (p *Plan) Do(ctx context.Context, done func(Step)) error {
	if err := p.Cannot(); err != nil {
		return err
	}
	if len(p.Steps) > 0 {
		release, err := alone(p.lock)
		if err != nil {
			return err
		}
		defer release()
	}
	if p.begin != nil {
		if err := p.begin(); err != nil {
			return err
		}
	}
	for _, path := range p.keep {
		for _, path := range []string{path + newSuffix, path} {
			s, err := look(path)
			if err != nil {
				return err
			}
			p.was = append(p.was, s)
		}
	}
	err := p.steps(ctx, done)
	if err == nil {
		return nil
	}
	if p.undo == nil {
		return fmt.Errorf("%w; run the same command again to continue", err)
	}
	back := &Plan{Ollama: p.Ollama, calm: !p.seen}
	undone := p.undo(back)
	if undone == nil {
		undone = back.steps(context.WithoutCancel(ctx), func(Step) {})
	}
	if undone != nil {
		return fmt.Errorf("%w; taking it back failed, too (%w); run %s", err, undone, p.rest)
	}
	return fmt.Errorf("%w; %s", err, strings.Join(back.Hints, ". "))
}

// alone has this process carry out a plan, and no other: two would take each other's files for those that were there
// before. A process that is killed leaves the file, which then locks nobody out.
func alone(path string) (release func(), err error) {
	for {
		lock, err := vfs.OS.Lock(path)
		switch {
		case errors.Is(err, vfs.ErrLocked):
			return nil, errors.New("another kvtier ollama install or remove is running; run the same command again when it has ended")
		case errors.Is(err, fs.ErrNotExist), vfs.IsNoSpace(err), vfs.IsNoLocks(err): // removal helps a full disk
			return func() {}, nil
		case err != nil:
			return nil, err
		}
		now, err := os.Lstat(path)
		if mine, e := lock.(*os.File).Stat(); err == nil && e == nil && os.SameFile(now, mine) {
			return func() {
				_ = os.Remove(path)
				_ = lock.Close()
			}, nil
		}
		_ = lock.Close() // of a run that has just ended
	}
}

func (p *Plan) steps(ctx context.Context, done func(Step)) error {
	for _, step := range p.Steps {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.Text, err)
		}
		done(step)
	}
	return nil
}

// lockOf is the lock of the plans that change the same files: ours of all services are in one folder.
func (m *Machine) lockOf(o Ollama) string {
	if o.Service != "" {
		return filepath.Join(string(m.Units), dropInName+lockSuffix)
	}
	return programOf(o.Folder) + lockSuffix
}

// try plans to run our llama-server once, as Ollama does to look for devices. It must reach the real one.
func (m *Machine) try(p *Plan, program, real string, variables []string) {
	dir := filepath.Dir(real)
	libraries := "LD_LIBRARY_PATH="
	if m.System.OS() == "darwin" {
		libraries = "DYLD_LIBRARY_PATH="
	}
	p.add(func(ctx context.Context) error {
		if _, ok := m.trusted(real); !ok {
			return nil // its owner's program must not run with the rights of this user
		}
		_, err := m.System.Run(ctx, append([]string{libraries + dir}, variables...), program, "--version")
		switch {
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("%w; its filesystem may be mounted with noexec, or SELinux may forbid it: try restorecon -v %s", err, program)
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w; it may be built for another C library: build it with make kvtier", err)
		}
		return err
	}, "run %s --version: it must reach the real %s", program, ServerName)
}

// writable returns an error if this user may not change a folder.
func (m *Machine) writable(dir string) error {
	err := m.Access(dir)
	switch {
	case err == nil && m.UID == 0:
		return m.roots(dir)
	case err == nil:
		return nil
	case vfs.IsReadOnly(err):
		return fmt.Errorf("%s is on a filesystem that is mounted read-only, so its llama-server cannot be replaced; change it where that filesystem is made", dir)
	case m.UID == 0:
		return fmt.Errorf("%s cannot be changed: %w", dir, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s belongs to another user; run %s", dir, m.toChange(dir, m.Line...))
	}
	return err
}

// roots returns an error unless root alone can change a folder, or put another one in its place: a user who
// can would have root write and remove files elsewhere, by a link in the place of the folder.
func (m *Machine) roots(dir string) error {
	if _, ok := m.trusted(dir); ok {
		return nil
	}
	if owner := m.ownerOf(dir); owner.UID > 0 {
		return fmt.Errorf("%s belongs to %s, who could lead root elsewhere; run %s", dir, owner.Name, m.toChange(dir, m.Line...))
	}
	return fmt.Errorf("users besides root can change %s or a folder above it, and could lead root elsewhere; take that right from them, or unpack Ollama into a folder of root's", dir)
}

const serverWait = 30 * time.Second

// serverEvery is the time between two questions to a server that starts.
const serverEvery = 200 * time.Millisecond

// checkService plans the check that the service runs, and runs ours.
func (m *Machine) checkService(p *Plan, u machine.Service) {
	if !u.Active {
		return
	}
	url := serverURL(u.Variables["OLLAMA_HOST"])
	p.add(func(ctx context.Context) error {
		if err := m.waitFor(ctx, url); err != nil {
			return fmt.Errorf("%s does not answer at %s after the restart (%w); journalctl -u %[1]s says why", u.Name, url, err)
		}
		now, err := m.unit(ctx, u.Name)
		if err != nil {
			return err
		}
		off, seen := m.without(p.Ollama, now)
		if off == nil && !seen {
			return fmt.Errorf("the process of %s cannot be looked at; journalctl -u %[1]s says whether it runs", u.Name)
		}
		if off != nil {
			return errors.New(off.why)
		}
		return nil
	}, "check that %s answers at %s and runs kvtier", u.Name, url)
}

func (m *Machine) waitFor(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	for {
		_, err := m.Version(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(serverEvery):
		}
	}
}

// without returns the reason why the models of a running service are not tiered, or nil, and
// whether this user sees the service's process.
func (m *Machine) without(o Ollama, u machine.Service) (off *fault, seen bool) {
	set := machine.VariablesOf(m.System, m.Proc, u.PID)
	seen = set != nil
	if !seen {
		set = u.Variables
	}
	if !on(set) {
		return m.switchedOff(u, set), seen
	}
	view := inside(m.Proc, u.PID)
	if _, err := os.Stat(view); err != nil {
		return nil, false
	}
	if _, own := m.Program(filepath.Join(view, o.Folder, ServerName)); !own {
		return &fault{fmt.Sprintf("%s does not see kvtier's file as %s, which systemd mounts from 235 on", u.Name, filepath.Join(o.Folder, ServerName)), m.restartOf(u)}, true
	}
	real := filepath.Join(view, m.Base, realFolder, ServerName)
	if f, err := m.Program.look(real); err != nil || f.is != stock {
		return &fault{fmt.Sprintf("%s does not see Ollama's llama-server in %s", u.Name, filepath.Join(m.Base, realFolder)), m.restartOf(u)}, true
	}
	return nil, seen
}

// inside is the root of the filesystem that a process sees.
func inside(proc string, pid int) string { return filepath.Join(proc, strconv.Itoa(pid), "root") }

// process returns the process that serves with an executable, 0 if there is none that this user may see.
func (m *Machine) process(executable string) int {
	for _, p := range machine.Processes(m.System, m.Proc) {
		if p.Executable == executable {
			return p.PID
		}
	}
	return 0
}

// Ollama's own defaults.
const (
	defaultHost = "127.0.0.1"
	defaultPort = "11434"
)

// serverURL is the address at which a server with this OLLAMA_HOST answers, as Ollama reads the variable.
func serverURL(value string) string {
	value = strings.Trim(strings.TrimSpace(value), `"'`)
	scheme, rest, ok := strings.Cut(value, "://")
	port := defaultPort
	switch {
	case !ok:
		scheme, rest = "http", value
	case scheme == "http":
		port = "80"
	case scheme == "https":
		port = "443"
	}
	rest, _, _ = strings.Cut(rest, "/")
	host, p, err := net.SplitHostPort(rest)
	if err != nil {
		host = strings.Trim(rest, "[]")
	} else if n, err := strconv.Atoi(p); err == nil && n >= 0 && n < 1<<16 {
		port = p
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = defaultHost
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
