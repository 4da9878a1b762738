package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// Environment is the machine that is looked at.
type Environment interface {
	machine.System

	// Probe makes an empty file in a directory of a user's and removes it: whose directory the path leads to may
	// change at any time.
	Probe(dir string, uid int) error

	// Installed lists the installations of Ollama, none without an error.
	Installed(ctx context.Context) ([]install.Status, error)

	// Engine asks the engine of a server's settings what the server asks. The variables are the server's, nil for
	// those of this program.
	Engine(ctx context.Context, c tierenv.Config, variables map[string]string) (remote.Health, error)

	// Telemetry returns the state that the reports to a directory of pages tell.
	Telemetry(ctx context.Context, root string) (telemetry.State, error)
}

// Here is the machine on which this program runs.
type Here struct{ machine.Here }

func (Here) Probe(path string, uid int) error {
	dir, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	if now, ok := vfs.OS.Owner(info); ok && now != uid {
		return fmt.Errorf("%s was replaced while it was looked at", path)
	}
	name := ".kvtier-doctor-" + rand.Text()
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), dir.Remove(name))
}

func (Here) Installed(ctx context.Context) ([]install.Status, error) {
	if runtime.GOOS == "windows" {
		return nil, nil
	}
	return install.Here().Status(ctx, install.Choice{}, os.Getenv("OLLAMA_HOST"))
}

func (Here) Engine(ctx context.Context, c tierenv.Config, variables map[string]string) (remote.Health, error) {
	return remote.Probe(ctx, c, variables)
}

func (Here) Telemetry(ctx context.Context, root string) (telemetry.State, error) {
	return collect.Read(ctx, root)
}

// Options say where to look.
type Options struct {
	// Root and Remote are directories of pages that were named; the servers' variables do not
	// count then. Empty: those of the servers, or else those of this program's variables.
	Root, Remote string
	// LocalGB and RemoteGB are their budgets as variables have them, or empty.
	LocalGB, RemoteGB string
	Service           string        // systemd unit; empty for ollama.service
	Limit             time.Duration // of each wait; 0 for LimitDefault
	// Again is this command line for somebody who sees more than this user.
	Again string
}

// LimitDefault bounds each wait: a disk that sleeps needs some seconds.
const LimitDefault = 10 * time.Second

// Look looks at a machine. It ends soon after its context, and after four times the
// limit at most: some questions need the answers of others.
func Look(ctx context.Context, env Environment, opt Options) Report {
	if opt.Limit <= 0 {
		opt.Limit = LimitDefault
	}
	return gather(ctx, env, opt).judge()
}

// asker asks questions that may hang, side by side.
type asker struct {
	ctx   context.Context
	limit time.Duration
	wg    sync.WaitGroup
	mu    sync.Mutex
	slow  []string // questions without an answer, in the order of the waits, then of their names
	past  int      // of them, those of earlier waits
}

// ask runs a question in a goroutine of its own, and hands its answer over if it comes in
// time. A question uses nothing that others write, because it may be left behind.
func ask[T any](a *asker, name string, question func(context.Context) T, answer func(T)) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		ctx, cancel := context.WithTimeout(a.ctx, a.limit)
		defer cancel()
		v, err := steady.Do(a.ctx, new(steady.Guard), steady.Wait{Most: a.limit + grace, Grace: grace},
			func() (T, error) { return question(ctx), nil }, func(T, error) {})
		a.mu.Lock()
		defer a.mu.Unlock()
		if err != nil {
			a.slow = append(a.slow, name)
			return
		}
		answer(v)
	}()
}

// grace is the time for which a question may go on after its context: a program that was killed has to end.
const grace = 500 * time.Millisecond

// wait returns when all questions are answered or given up.
func (a *asker) wait() {
	a.wg.Wait()
	slices.Sort(a.slow[a.past:])
	a.past = len(a.slow)
}

// scene is all that is known of a machine. Checks only read it.
type scene struct {
	machine.Filesystems

	opt       Options
	user      machine.Account
	shell     map[string]string
	servers   []server
	installed []installed
	stores    []store
	slow      []string
	names     map[int]string // of users
}

func gather(ctx context.Context, e Environment, opt Options) *scene {
	s := &scene{opt: opt, user: e.User(), shell: e.Variables()}
	a := &asker{ctx: ctx, limit: opt.Limit}
	var unit *machine.Server
	var inDocker []machine.Server
	var all []machine.Process
	ask(a, "systemd", func(ctx context.Context) *machine.Server { return machine.FindServer(ctx, e, opt.Service) }, func(v *machine.Server) { unit = v })
	ask(a, "Docker", func(ctx context.Context) []machine.Server { return machine.Containers(ctx, e) }, func(v []machine.Server) { inDocker = v })
	ask(a, "the list of processes", func(context.Context) []machine.Process { return machine.Processes(e, "/proc") }, func(v []machine.Process) { all = v })
	ask(a, "the installations of Ollama", func(ctx context.Context) []installed { return installations(ctx, e) }, func(v []installed) { s.installed = v })
	ask(a, "the list of mounts", func(context.Context) machine.Filesystems { return machine.FilesystemsOf(e) }, func(v machine.Filesystems) { s.Filesystems = v })
	a.wait()
	ask(a, "the servers' mounts and users", func(context.Context) []machine.Server { return machine.Servers(e, unit, inDocker, all) }, func(v []machine.Server) {
		s.servers = serversOf(v, s.user)
	})
	a.wait()
	s.stores = s.storesOf()

	for i := range s.stores {
		st := &s.stores[i]
		owner := anybody
		if o, ok := s.owner(*st); ok && o.as != "" {
			owner = o.User.UID
		}
		if st.Address != "" {
			st.engine = s.askEngine(a, e, *st) // before any answer, which changes the store
		}
		if root := st.settings.Local; root != "" {
			ask(a, "the reports of "+root, func(ctx context.Context) *telemetry.State {
				state, err := e.Telemetry(ctx, root)
				if err != nil {
					return nil
				}
				return &state
			}, func(v *telemetry.State) { st.state = v })
		}
		for _, p := range st.places {
			p.noAnswer = true // an answer replaces the place
			tier, path := p.tier, p.path
			ask(a, path, func(context.Context) place { return lookAt(e, tier, path, owner) }, func(v place) { *p = v })
		}
	}
	a.wait()
	uids := s.uids()
	ask(a, "the names of users", func(context.Context) map[int]string {
		names := make(map[int]string)
		for _, uid := range uids {
			account, _ := e.Account(fmt.Sprint(uid))
			names[uid] = cmp.Or(account.Name, fmt.Sprint(uid))
		}
		return names
	}, func(v map[int]string) { s.names = v })
	a.wait()
	s.slow = a.slow
	return s
}

// storesOf lists the directories of pages to look at: those that were named, or those of
// servers, or those of this program's own variables.
func (s *scene) storesOf() []store {
	var all []store
	add := func(set settings, server int) {
		at := slices.IndexFunc(all, func(o store) bool {
			return o.Local == set.Local && o.Remote == set.Remote && o.Address == set.Address && o.KeyFile == set.KeyFile
		})
		if at < 0 {
			at = len(all)
			st := store{settings: set}
			for _, p := range []*place{{tier: telemetry.PlaceLocal, path: set.Local}, {tier: telemetry.PlaceRemote, path: set.Remote}} {
				if p.path != "" && (p.tier == telemetry.PlaceLocal || set.Address == "") { // an engine has no directory
					st.places = append(st.places, p)
				}
			}
			all = append(all, st)
		}
		if server >= 0 {
			all[at].servers = append(all[at].servers, server)
		}
	}
	if s.opt.Root != "" || s.opt.Remote != "" {
		set := map[string]string{localVar: s.opt.Root, remoteVar: s.opt.Remote, keyFileVar: value(s.shell, keyFileVar), localGBVar: s.opt.LocalGB, remoteGBVar: s.opt.RemoteGB}
		if s.opt.Root == "" {
			set[localVar] = value(s.shell, localVar)
		}
		add(settingsOf(set, s.user.Home), slices.IndexFunc(s.servers, func(o server) bool { return s.settingsOf(o).Local == set[localVar] }))
		return all
	}
	for i, server := range s.servers {
		set := s.settingsOf(server)
		if !set.on || server.Kind == machine.ByDocker && server.Host(set.Local) == "" {
			continue
		}
		if server.Kind == machine.ByDocker {
			set.Local = server.Host(set.Local)
			if set.Address == "" {
				set.Remote = server.Host(set.Remote)
			}
		}
		add(set, i)
	}
	for i, server := range s.servers {
		if len(all) == 0 && server.Kind != machine.ByDocker {
			add(s.settingsOf(server), i)
		}
	}
	if len(all) == 0 {
		add(settingsOf(s.shell, s.user.Home), -1)
	}
	return all
}

func (s *scene) settingsOf(o server) settings { return settingsOf(o.Variables(), o.Home()) }

// owner is the server that uses a store, if one is known.
func (s *scene) owner(st store) (server, bool) {
	if len(st.servers) == 0 {
		return server{}, false
	}
	return s.servers[st.servers[0]], true
}

// by is the server of a store, or one that stands for "your server".
func (s *scene) by(st store) server {
	if o, ok := s.owner(st); ok {
		return o
	}
	return server{Server: machine.Server{Kind: machine.ByHand, User: s.user, Executable: "ollama"}}
}

func (s *scene) uids() (all []int) {
	for _, st := range s.stores {
		for _, p := range st.places {
			all = append(all, p.file.UID)
		}
	}
	for _, o := range s.servers {
		all = append(all, o.User.UID)
	}
	return all
}

func (s *scene) looked() []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, o := range s.servers {
		state := "not running"
		if o.PID > 0 {
			state = fmt.Sprintf("process %d of %s", o.PID, cmp.Or(o.User.Name, s.names[o.User.UID], "an unknown user"))
		}
		say("server %s, %s", o.title(), state)
	}
	for _, i := range s.installed {
		say("Ollama %s, %s: kvtier %s", cmp.Or(i.Ollama, "of an unknown version"), i.Executable, i.how())
	}
	for _, st := range s.stores {
		for _, p := range st.places {
			m, _ := machine.MountOf(s.Mounted, p.above)
			line := fmt.Sprintf("%s tier %s", p.tier, p.path)
			if m.Type != "" && p.diskErr == nil && !p.noAnswer {
				line += fmt.Sprintf(", %s, %s of %s free", m.Type, format.HumanBytes(p.disk.Free), format.HumanBytes(p.disk.Total))
			}
			lines = append(lines, line)
		}
		if st.engine != nil {
			say("remote tier %s%s", st.Remote, st.engine.answers())
		}
		if st.state != nil {
			say("counters of %s since %s", st.places[0].path, st.state.Since.UTC().Format(time.DateOnly))
		}
	}
	return lines
}
