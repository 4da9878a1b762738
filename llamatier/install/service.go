package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/tierenv"
)

func (m *Machine) installService(ctx context.Context, p *Plan, new file, opt Options) error {
	u := p.Ollama.unit
	if u.Props["RootDirectory"] != "" || u.Props["RootImage"] != "" {
		return fmt.Errorf("%s has a root of its own; change llama-server in that root, with --prefix", u.Name)
	}
	f, err := m.Program.open(p.Ollama.Folder)
	if err != nil {
		return err
	}
	s, off := m.trouble(p.Ollama, f)
	updated := s == Replaced && f.real.is == missing // an update removed a file of ours
	if s != None && !updated {
		if off.cure != "" || off.why == "" {
			off = fault{"it has to be taken back first", m.again("remove", p.Ollama)}
		}
		return fmt.Errorf("%s is changed already (%s): %s", f.path, s, off)
	}
	d, err := m.dropIn(p.Ollama, opt)
	if err != nil {
		return err
	}
	rights, err := m.rightsFor(u, d.group)
	if err != nil {
		return err
	}
	ourServer, path := filepath.Join(m.Base, ServerName), m.Units.dropIn(u.Name)
	if m.upToDate(u, d, ourServer, new) && (!m.ownsRights(u.Name, d.group) || m.hasRights(rights)) {
		p.hint("kvtier %s is installed for %s already.", new.version, u.Name)
		return nil
	}
	p.cannot = m.root()
	made, _, err := readNote(filepath.Join(m.Base, noteName))
	if err != nil {
		return err
	}
	made.keep(d.earlier)
	made.keep(d.local)
	if d.earlier != "" && d.earlier != d.local {
		p.hint("Pages in %s are not used any more. They hold conversations: remove the directory when nobody needs them.", d.earlier)
	}
	fresh := absent(filepath.Dir(path))
	if d.pages != "" {
		fresh = append(fresh, absent(d.pages)...)
	}
	made.Made = append(made.Made, fresh...)
	if p.begin, err = unchangedFiles(path, filepath.Join(m.Base, noteName)); err != nil {
		return err
	}
	m.backToService(p, append(fresh, absent(filepath.Join(m.Base, realFolder))...))
	p.add(func(context.Context) error {
		if err := m.Change.mkdir(filepath.Join(m.Base, realFolder), 0o755); err != nil {
			return err
		}
		if err := m.Change.put(filepath.Join(m.Base, noteName), made.text(), 0o644); err != nil {
			return err
		}
		return m.Change.copyTo(new.path, ourServer, 0o755)
	}, "copy kvtier %s to %s", new.version, ourServer)
	command, free := m.command(m.Bin)
	if updated {
		links, _ := m.commandsOf(f)
		earlier := append(links, f.leftovers()...)
		p.and(func(context.Context) error { return m.Change.remove(earlier...) }, "remove %s", list(earlier))
		free = free || slices.Contains(links, command)
	}
	if free {
		p.and(func(context.Context) error { return m.Change.link(ourServer, command) }, "link %s to it", command)
	}
	m.try(p, ourServer, f.server.path, []string{RealVariable + "=" + f.server.path})
	write := func(context.Context) error {
		return errors.Join(m.Change.mkdir(filepath.Dir(path), 0o755), m.Change.put(path, []byte(d.String()), 0o644))
	}
	if d.pages != "" && slices.Contains(made.Made, d.pages) {
		p.add(func(context.Context) error { return m.makePages(d.pages, u) }, "make %s for the user %s", d.pages, cmp.Or(u.Props["User"], "root"))
		p.and(write, "write %s", path)
	} else {
		p.add(write, "write %s", path)
	}
	p.shows(d.String())
	if m.ownsRights(u.Name, d.group) {
		m.give(p, rights)
	}
	m.restart(p, u)
	m.checkService(p, u)
	return nil
}

// backToService plans how the steps of an installation are taken back. fresh are the directories that they make.
func (m *Machine) backToService(p *Plan, fresh []string) {
	u, path := p.Ollama.unit, m.Units.dropIn(p.Ollama.Service)
	_, installed := os.Lstat(path)
	link, _ := m.command(m.Bin)
	base := func(name string) string { return filepath.Join(m.Base, name) }
	p.keep = []string{noteOf(p.Ollama.Folder), programOf(p.Ollama.Folder), base(noteName), base(ServerName), link, path, filepath.Join(m.Sudoers, rightsName)}
	p.rest = m.again("remove", p.Ollama)
	p.undo = func(back *Plan) error {
		files := func(context.Context) error { return errors.Join(m.Change.restore(p.was), m.Change.removeEmpty(fresh)) }
		if installed != nil {
			back.hint("Ollama runs its own llama-server again")
			err := m.removeService(back)
			back.add(files, "put files back")
			return err
		}
		back.hint("the installation for %s is again as it was", u.Name)
		back.add(files, "put files back")
		m.restart(back, u)
		m.answers(back, u)
		return nil
	}
}

// dropIn makes the drop-in of a service. Variables of an earlier one stay where no others
// are given and the defaults are not asked for.
func (m *Machine) dropIn(o Ollama, opt Options) (dropIn, error) {
	set := map[string]string{
		tierenv.TieringVariable: "1",
		tierenv.LocalVariable:   filepath.Join(m.State, stateName, "pages"),
		LogVariable:             filepath.Join(m.Logs, stateName, "llama-server.log"),
	}
	earlier, _, err := m.Units.read(o.Service)
	if err != nil {
		return dropIn{}, err
	}
	for name, value := range earlier {
		if !slices.Contains(opt.Reset, name) {
			set[name] = value
		}
	}
	maps.Copy(set, opt.Variables)
	d := dropIn{
		folder: o.Folder, base: m.Base, earlier: earlier[tierenv.LocalVariable],
		local: set[tierenv.LocalVariable], group: set[GroupVariable],
	}
	if !strings.HasPrefix(d.local, filepath.Join(m.State, stateName)+"/") {
		d.pages = d.local
	}
	for name, value := range set {
		if strings.ContainsFunc(value, func(r rune) bool { return r == '"' || r == '\\' || unicode.IsControl(r) }) {
			return dropIn{}, fmt.Errorf("%s=%q cannot be written into a unit; leave quotes, backslashes and control characters out", name, value)
		}
		d.variables = append(d.variables, name+"="+value)
	}
	slices.Sort(d.variables)
	sockets := o.unit.Props["RestrictAddressFamilies"]
	d.sockets = sockets != "" && !strings.HasPrefix(sockets, "~") && !slices.Contains(strings.Fields(sockets), "AF_UNIX")
	for _, path := range []string{d.folder, d.base, d.local, set[LogVariable], cmp.Or(set[tierenv.RemoteVariable], "/")} {
		if !unitPath.MatchString(path) {
			return dropIn{}, fmt.Errorf("%s cannot be written into a unit; use letters, digits and ._+@~- in its name", path)
		}
	}
	if logs := filepath.Join(m.Logs, stateName); machine.Within(d.local, logs) {
		return dropIn{}, fmt.Errorf("%s is in %s, which remove removes, and pages must stay; give another directory as --root", d.local, logs)
	}
	if d.pages != "" && o.unit.Hides(d.pages) {
		return dropIn{}, fmt.Errorf("%s cannot use %s, because it has ProtectHome=%s; give another directory as --root", o.Service, d.pages, o.unit.Props["ProtectHome"])
	}
	return d, nil
}

// upToDate reports whether a service has an installation with this drop-in and this program,
// as far as this user may see.
func (m *Machine) upToDate(u machine.Service, d dropIn, path string, new file) bool {
	text, err := os.ReadFile(m.Units.dropIn(u.Name))
	if err != nil || string(text) != d.String() || u.Props["NeedDaemonReload"] == "yes" {
		return false
	}
	if f, err := m.Program.look(path); err != nil || f.digest != new.digest {
		return false
	}
	f, err := m.Program.look(filepath.Join(inside(m.Proc, u.PID), d.folder, ServerName))
	return !u.Active || err == nil && f.digest == new.digest
}

// root returns an error if the user of this program may not change the system.
func (m *Machine) root() error {
	if m.UID != 0 {
		return fmt.Errorf("only root may change a service; run %s", m.withSudo())
	}
	return nil
}

// Variables of our llama-server.
const (
	LogVariable  = "KVTIER_LLAMA_LOG"    // the daemon's log
	RealVariable = "KVTIER_LLAMA_SERVER" // the real llama-server
)

// logIn is the daemon's log where no variable names another one.
func logIn(home string) string { return filepath.Join(home, ".ollama", "logs", "kvtier.log") }

// LogPath is the log of a daemon with this process's environment, "" if it has none.
func LogPath() string {
	if path := os.Getenv(LogVariable); path != "" {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return logIn(home)
}

func (m *Machine) restart(p *Plan, u machine.Service) {
	if p.calm {
		return
	}
	p.add(func(ctx context.Context) error {
		p.seen = true
		return m.systemctl(ctx, "daemon-reload")
	}, "systemctl daemon-reload")
	if !u.Active {
		p.hint("%s is not running; start it with systemctl start %[1]s.", u.Name)
		return
	}
	p.and(func(ctx context.Context) error { return m.systemctl(ctx, "restart", u.Name) }, "systemctl restart %s (models that are loaded are unloaded)", u.Name)
}

func (m *Machine) systemctl(ctx context.Context, args ...string) error {
	return m.Change.do(func() error {
		_, err := m.System.Run(ctx, nil, "systemctl", args...)
		return err
	})
}

func (m *Machine) removeService(p *Plan) error {
	u, path := p.Ollama.unit, m.Units.dropIn(p.Ollama.Service)
	set, there, err := m.Units.read(u.Name)
	if err != nil {
		return err
	}
	made, _, err := readNote(filepath.Join(m.Base, noteName))
	if err != nil {
		return err
	}
	others := m.Units.others(u.Name)
	_, noBase := os.Lstat(m.Base)
	_, noRest := os.Lstat(path + newSuffix)
	if !there && (noBase != nil || len(others) > 0 && noRest != nil) {
		return nil
	}
	p.cannot = m.root()
	p.add(func(context.Context) error { return m.Change.remove(path+newSuffix, path) }, "remove %s", path)
	if m.ownsRights(u.Name, "") {
		m.give(p, "")
	}
	m.restart(p, u)
	if len(others) > 0 {
		p.hint("%s, pages and logs stay: kvtier is also installed for %s.", m.Base, list(others))
		return nil
	}
	now := u.Variables // with those of other drop-ins
	made.keep(cmp.Or(now[tierenv.LocalVariable], set[tierenv.LocalVariable], filepath.Join(m.State, stateName, "pages")))
	logs, own := filepath.Join(m.Logs, stateName), filepath.Join(m.State, stateName)
	p.add(func(context.Context) error {
		if isEmpty(own) { // pages are elsewhere, or none was stored; one may come now
			if err := m.Change.removeOf(own, os.Remove); err != nil && isEmpty(own) {
				return err
			}
		}
		return m.Change.removeOf(logs, os.RemoveAll)
	}, "remove %s", logs)
	leavePages(p, made)
	if remote := cmp.Or(now[tierenv.RemoteVariable], set[tierenv.RemoteVariable]); remote != "" {
		p.hint("Pages in %s, the remote tier, stay: other servers may use them.", remote)
	}
	var links []string // of ours to our program
	if command, _ := m.command(m.Bin); linksTo(command, filepath.Join(m.Base, ServerName)) {
		links = append(links, command)
	}
	p.and(func(context.Context) error { return m.Change.removeBase(m.Base, made.Made, links) }, "remove %s", list(append([]string{m.Base}, links...))) // with the note, so it is last
	m.answers(p, u)
	return nil
}

// answers plans to wait for the service after a restart.
func (m *Machine) answers(p *Plan, u machine.Service) {
	if u.Active && !p.calm {
		url := serverURL(u.Variables["OLLAMA_HOST"])
		p.add(func(ctx context.Context) error { return m.waitFor(ctx, url) }, "check that %s answers at %s", u.Name, url)
	}
}

// leavePages names the directories of pages that the service has used, which stay.
func leavePages(p *Plan, made note) {
	stay := slices.DeleteFunc(slices.Clone(made.Pages), func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist) || isEmpty(dir)
	})
	if len(stay) > 0 {
		what := map[bool]string{true: "directory", false: "directories"}[len(stay) == 1]
		p.hint("Pages in %s stay. They hold conversations: remove the %s when nobody needs them.", list(stay), what)
	}
}
