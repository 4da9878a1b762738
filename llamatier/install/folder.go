package install

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/jsonfile"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/version"
)

// folder is Ollama's folder, as an installation by file finds it.
type folder struct {
	path         string
	server, real file
	note         note
	noted        bool
}

// note is written beside the files of an installation.
type note struct {
	Real  []string `json:"real,omitempty"`  // SHA-256 of llama-server-real, and of the file that will replace it
	Done  bool     `json:"done,omitempty"`  // our file is in its place
	Made  []string `json:"made,omitempty"`  // directories that were made for the installation
	Pages []string `json:"pages,omitempty"` // the directories of pages
}

const noteName = "kvtier-install.json"

// noteOf is the path of the note about Ollama's folder: beside it, because an update of Ollama may
// remove the folder.
func noteOf(folder string) string { return folder + "." + noteName }

// noteMax is the most that is read of a note, in bytes.
const noteMax = 1 << 16

func readNote(path string) (n note, ok bool, err error) {
	err = jsonfile.Read(path, noteMax, &n)
	switch {
	case err == nil:
		return n, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return note{}, false, nil
	case errors.As(err, new(*json.SyntaxError)), errors.As(err, new(*json.UnmarshalTypeError)):
		return note{}, false, nil // broken: as good as none
	case errors.Is(err, fs.ErrPermission):
		return note{}, false, err
	}
	return note{}, false, fmt.Errorf("read the note of an installation: %w; if %s was not written by kvtier, move it away", err, path)
}

func (n note) text() []byte {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // it has only strings
	}
	return append(text, '\n')
}

func (n *note) keep(dir string) {
	if dir != "" && !slices.Contains(n.Pages, dir) {
		n.Pages = append(n.Pages, dir)
	}
}

type state string

// States.
const (
	None        state = "not installed"
	Installed   state = "installed"
	Interrupted state = "interrupted" // install or remove did not end
	Replaced    state = "replaced"    // an update of Ollama took our file's place
	Broken      state = "broken"
	Unsupported state = "unsupported" // this Ollama has no llama-server
)

func (is programs) open(path string) (folder, error) {
	f := folder{path: path}
	var err error
	if f.server, err = is.look(filepath.Join(path, ServerName)); err == nil {
		f.real, err = is.look(filepath.Join(path, RealName))
	}
	if err != nil {
		return f, fmt.Errorf("%w; install Ollama again", err)
	}
	f.note, f.noted, err = readNote(noteOf(path))
	return f, err
}

// kept reports whether llama-server-real is the file that install set aside.
func (f folder) kept() bool { return f.noted && slices.Contains(f.note.Real, f.real.digest) }

// updated is the reason for Replaced, and brokenOff that for Interrupted.
const (
	updated   = "an update of Ollama has put its own llama-server back"
	brokenOff = "install or remove was broken off"
)

// foreign reports whether there is a llama-server-real that nobody of us has put there.
func (f folder) foreign() bool { return f.real.is != missing && !f.kept() }

// state tells the state, the reason for a state that needs attention, and the verb of kvtier ollama that helps.
func (f folder) state() (s state, why, verb string) {
	switch {
	case f.real.is == ours:
		return Broken, fmt.Sprintf("%s is kvtier's, too; install Ollama again", f.real.path), ""
	case f.server.is == ours && f.real.is == missing:
		return Broken, fmt.Sprintf("%s is gone, so no model can be loaded; install Ollama again, then kvtier", f.real.path), ""
	case f.server.is == ours && f.noted && !f.kept():
		return Broken, fmt.Sprintf("%s is not the file that install set aside; install Ollama again, then kvtier", f.real.path), ""
	case f.server.is == ours:
		return Installed, "", ""
	case f.server.is == missing && f.real.is == stock:
		return Interrupted, fmt.Sprintf("%s is gone", f.server.path), "remove"
	case f.server.is == missing:
		return Unsupported, fmt.Sprintf("%s is gone; install Ollama again", f.server.path), ""
	case f.real.is == missing && f.noted && f.note.Done:
		return Replaced, updated, "install"
	case f.real.is == missing:
		return None, "", ""
	case f.real.digest == f.server.digest:
		return Interrupted, brokenOff, "install"
	case f.kept():
		return Replaced, updated, "install"
	}
	return Replaced, fmt.Sprintf("%s is another file than %s, and nothing says that kvtier put it there; remove it if Ollama was updated", f.real.path, f.server.path), ""
}

func (m *Machine) installFile(p *Plan, new file) error {
	f, err := m.Program.open(p.Ollama.Folder)
	if err != nil {
		return err
	}
	s, off := m.trouble(p.Ollama, f)
	switch {
	case s == Broken, f.server.is == missing, s == Replaced && f.foreign():
		return errors.New(off.String())
	case s == Installed && f.server.digest == new.digest && f.noted == f.note.Done:
		p.hint("kvtier %s is installed there already.", new.version)
		return nil
	}
	p.cannot = cmp.Or(m.writable(f.path), m.writable(filepath.Dir(f.path)))
	p.begin = func() error { return m.Program.unchanged(f) }
	c := m.inPath(f.path)
	if c.free {
		f.note.Made = append(f.note.Made, absent(filepath.Dir(c.link))...)
	}
	m.backToFile(p, f, s, c)
	if s != Installed {
		p.add(func(context.Context) error { return m.Change.setAside(f) }, "keep Ollama's %s as %s", f.server.path, RealName)
	}
	if c.free || c.linked {
		p.add(func(context.Context) error {
			err := m.Change.copyTo(new.path, c.program, 0o755)
			if err != nil || c.linked {
				return err
			}
			return m.Change.link(c.program, c.link)
		}, "copy kvtier %s to %s, and link %s to it", new.version, c.program, c.link)
	}
	p.add(func(context.Context) error {
		if err := m.Change.copyTo(new.path, f.server.path, 0o755); err != nil {
			return err
		}
		return m.Change.done(f, true)
	}, "put kvtier %s in the place of %s", new.version, f.server.path)
	m.try(p, f.server.path, f.real.path, nil)
	return nil
}

// backToFile plans how the steps of an installation are taken back.
func (m *Machine) backToFile(p *Plan, f folder, s state, c command) {
	p.keep = []string{noteOf(f.path), c.program}
	if s == Installed {
		p.keep = append(p.keep, f.server.path)
	}
	if c.free || c.linked {
		p.keep = append(p.keep, c.link)
	}
	fresh := absent(filepath.Dir(c.link))
	p.rest = m.again("remove", p.Ollama)
	p.undo = func(back *Plan) error {
		if s == Installed {
			back.hint("the installation in %s is again as it was", f.path)
		} else {
			back.hint("Ollama runs its own llama-server again")
			if err := m.removeFile(back); err != nil {
				return err
			}
		}
		back.add(func(context.Context) error { return errors.Join(m.Change.restore(p.was), m.Change.removeEmpty(fresh)) }, "put files back")
		return nil
	}
}

// unchanged returns an error if the folder is not as it was when a plan was made: an update
// may have come while somebody thought about the plan.
func (is programs) unchanged(then folder) error {
	now, err := is.open(then.path)
	if err != nil {
		return err
	}
	if now.server != then.server || now.real != then.real {
		return fmt.Errorf("files in %s have changed since the steps were shown; run the same command again", then.path)
	}
	return nil
}

func (m *Machine) removeFile(p *Plan) error {
	f, err := m.Program.open(p.Ollama.Folder)
	if err != nil {
		return err
	}
	s, off := m.trouble(p.Ollama, f)
	if s == Broken || s == Replaced && f.foreign() {
		return errors.New(off.String())
	}
	leftovers, dirs := m.commandsOf(f)
	leftovers = append(leftovers, f.leftovers()...)
	if f.real.is == missing && len(leftovers) == 0 {
		return nil
	}
	p.cannot = cmp.Or(p.cannot, m.writable(f.path), m.writable(filepath.Dir(f.path)))
	p.begin = func() error { return m.Program.unchanged(f) }
	switch {
	case f.real.is == missing:
	case f.server.is == stock:
		p.add(func(context.Context) error { return m.Change.remove(f.real.path) }, "remove %s", f.real.path)
	default:
		p.add(func(context.Context) error {
			if err := m.Change.done(f, false); err != nil {
				return err
			}
			return m.Change.rename(f.real.path, f.server.path)
		}, "put Ollama's own llama-server back: rename %s to %s", f.real.path, ServerName)
	}
	if len(leftovers) > 0 {
		p.add(func(context.Context) error {
			return errors.Join(m.Change.remove(leftovers...), m.Change.removeEmpty(dirs))
		}, "remove %s", list(leftovers))
	}
	return nil
}

func (f folder) leftovers() []string {
	var paths []string
	in := func(name string) string { return filepath.Join(f.path, name+newSuffix) }
	program := programOf(f.path)
	for _, path := range []string{program + newSuffix, program, in(ServerName), in(RealName), noteOf(f.path) + newSuffix, noteOf(f.path)} {
		if info, err := os.Lstat(path); err == nil && !info.IsDir() {
			paths = append(paths, path)
		}
	}
	return paths
}

func list(paths []string) string {
	if len(paths) < 2 {
		return strings.Join(paths, "")
	}
	last := len(paths) - 1
	return strings.Join(paths[:last], ", ") + " and " + paths[last]
}

// ourPackage is the package that Go has noted in our program.
const ourPackage = "github.com/kvtier/kvtier/cmd/kvtier"

// program reads who built a file, from the notes that Go leaves in its programs.
func program(path string) (ourVersion string, ours bool) {
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Path != ourPackage {
		return "", false // not Go's, or not ours
	}
	return version.Of(info), true
}

type file struct {
	path    string
	is      kind
	version string // of ours
	digest  string // SHA-256 of its content
	mode    fs.FileMode
}

type kind int

const (
	missing kind = iota
	ours
	stock
)

// serverBytesMax bounds the file that is read for its digest: linkers make no larger program by default.
const serverBytesMax = 2 << 30

// programs tells our program from other files: it returns the version of ours.
type programs func(path string) (version string, ours bool)

// look identifies the file in the place of a llama-server. Anything that cannot be a
// llama-server is an error.
func (is programs) look(path string) (file, error) {
	f := file{path: path}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return f, fmt.Errorf("%s is a link to a file that does not exist", path)
		}
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.mode = info.Mode()
	switch {
	case !f.mode.IsRegular():
		return f, fmt.Errorf("%s is not a file", path)
	case info.Size() == 0:
		return f, fmt.Errorf("%s is empty", path)
	case info.Size() > serverBytesMax:
		return f, fmt.Errorf("%s is no llama-server: it has more than 2 GiB", path)
	case f.mode&0o111 == 0:
		return f, fmt.Errorf("%s cannot be run, its mode is %04o", path, f.mode.Perm())
	}
	f.is = stock
	if v, own := is(path); own {
		f.is, f.version = ours, v
	}
	f.digest, err = digestOf(path, info)
	return f, err
}

// digestOf is the SHA-256 of the file that info describes.
func digestOf(path string, info fs.FileInfo) (string, error) {
	f, err := openSame(path, info)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// source returns our program, which will be installed.
func (m *Machine) source(path string) (file, error) {
	f, err := m.Program.look(path)
	switch {
	case err != nil:
		return f, err
	case f.is == missing:
		return f, fmt.Errorf("%s, this program, does not exist any more; run it from where it lies", path)
	case f.is != ours:
		return f, fmt.Errorf("%s does not say that it is kvtier; take it from a release's archive, or from make kvtier", path)
	}
	return f, nil
}

// trusted reports whether only this user and root can change a file, or put another one in its place. Such
// a file may be run, by the path without links that trusted returns.
func (m *Machine) trusted(path string) (resolved string, ok bool) {
	return machine.Trusted(m.System, m.UID, path)
}
