package install

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/kvtier/kvtier/internal/machine"
)

// changes makes changes of files. Its function is called before each one, if it is set; an error
// prevents the change.
type changes func() error

func (c changes) do(do func() error) error {
	if c != nil {
		if err := c(); err != nil {
			return err
		}
	}
	return do()
}

// put writes a file. At every moment the path has the old content or the new one.
func (c changes) put(path string, content []byte, mode fs.FileMode) error {
	tmp := path + newSuffix
	if err := c.do(func() error { return writeNew(tmp, content, mode) }); err != nil {
		return err
	}
	return c.rename(tmp, path)
}

// writeNew writes a file that is on disk when writeNew returns. A file that an earlier run has left goes.
func writeNew(path string, content []byte, mode fs.FileMode) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // follows no link
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path) // a full disk needs the room
	}
	return err
}

// openSame opens the regular file that info describes, and no other: the owner of its folder may have
// exchanged it since for a link to a file that only root may read, or for a pipe.
func openSame(path string, info fs.FileInfo) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // waits for no pipe
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err == nil && (!now.Mode().IsRegular() || !os.SameFile(info, now)) {
		err = fmt.Errorf("%s was replaced while it was looked at; run the same command again", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// copyTo copies a file beside the path, and then to it.
func (c changes) copyTo(from, path string, mode fs.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return c.put(path, content, mode)
}

func (c changes) rename(from, to string) error {
	return c.do(func() error {
		return errors.Join(os.Rename(from, to), syncDir(filepath.Dir(to)))
	})
}

// syncDir makes the names in a directory durable, where the filesystem can do so.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	_ = d.Sync() // some filesystems refuse
	return d.Close()
}

func (c changes) remove(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := c.do(func() error { return os.Remove(path) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (c changes) link(to, path string) error {
	if err := c.mkdir(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return c.do(func() error { return os.Symlink(to, path) })
}

func (c changes) mkdir(path string, mode fs.FileMode) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
		return nil
	}
	if err := c.mkdir(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return c.do(func() error { return os.Mkdir(path, mode) })
}

// absent returns the path and those above it that do not exist, the deepest first.
func absent(path string) []string {
	var list []string
	for ; ; path = filepath.Dir(path) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return list
		}
		list = append(list, path)
	}
}

// saved is what was at a path before a plan: a file, a link, nothing, or something that no plan changes.
type saved struct {
	path    string
	mode    fs.FileMode // 0 for nothing
	content string      // of a link its target
}

func look(path string) (saved, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return saved{path: path}, nil
	}
	if err != nil {
		return saved{}, err
	}
	s := saved{path: path, mode: info.Mode()}
	if s.mode&fs.ModeSymlink != 0 {
		s.content, err = os.Readlink(path)
	}
	if !s.mode.IsRegular() {
		return s, err
	}
	f, err := openSame(path, info)
	if err != nil {
		return saved{}, err
	}
	content, err := io.ReadAll(io.LimitReader(f, serverBytesMax))
	s.content = string(content)
	return s, errors.Join(err, f.Close())
}

// unchangedFiles returns a function whose error says that files are not as they are now, when a plan is made.
func unchangedFiles(paths ...string) (begin func() error, err error) {
	var then []saved
	for _, path := range paths {
		s, err := look(path)
		if err != nil {
			return nil, err
		}
		then = append(then, s)
	}
	return func() error {
		for _, s := range then {
			if now, err := look(s.path); err != nil || now != s {
				return errors.Join(fmt.Errorf("%s has changed since the steps were shown; run the same command again", s.path), err)
			}
		}
		return nil
	}, nil
}

// restore puts everything back that can be.
func (c changes) restore(was []saved) error {
	var failed []error
	for _, s := range was {
		now, err := look(s.path)
		switch {
		case err != nil || now == s:
		case s.mode == 0:
			err = c.remove(s.path)
		case s.mode&fs.ModeSymlink != 0:
			err = errors.Join(c.remove(s.path), c.link(s.content, s.path))
		default:
			err = c.put(s.path, []byte(s.content), s.mode.Perm())
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// setAside gives the stock file its second name.
func (c changes) setAside(f folder) error {
	n := note{Real: []string{f.server.digest}, Made: f.note.Made}
	if f.real.is == stock {
		n.Real = append(n.Real, f.real.digest) // until it is replaced
	}
	if err := c.put(noteOf(f.path), n.text(), 0o644); err != nil {
		return err
	}
	if f.real.is == stock && f.real.digest == f.server.digest {
		return nil // by a run that was broken off
	}
	tmp := f.real.path + newSuffix
	if err := c.remove(tmp); err != nil {
		return err
	}
	if err := c.do(func() error { return second(f.server.path, tmp) }); err != nil {
		return err
	}
	return c.rename(tmp, f.real.path)
}

// done notes whether our file is in the place of a folder's llama-server. Without a note somebody else has
// put it there.
func (c changes) done(f folder, done bool) error {
	n, there, err := readNote(noteOf(f.path))
	if err != nil || !there {
		return err
	}
	n.Done = done
	return c.put(noteOf(f.path), n.text(), 0o644)
}

// second gives a file a second name. That of a symbolic link is a symbolic link, because
// llama-server looks for libraries beside the file.
func second(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to) // whose owner decides nothing
	}
	return os.Link(from, to)
}

// makePages makes a directory of mode 0700 for the service's user.
func (m *Machine) makePages(dir string, u machine.Service) error {
	if err := m.Change.mkdir(dir, 0o700); err != nil {
		return err
	}
	name := u.Props["User"]
	if name == "" || u.Props["DynamicUser"] == "yes" {
		return nil
	}
	account, known := m.System.Account(name)
	if !known {
		return fmt.Errorf("there is no user %s", name)
	}
	return m.Change.do(func() error { return chownDir(dir, account.UID) })
}

// removeBase removes our files, links to them, and the directories that were made for us and are empty. The
// note is the last one: it names the others.
func (c changes) removeBase(base string, made, links []string) error {
	if err := c.removeEmpty(made); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(base, name) }
	return c.remove(slices.Concat([]string{in(ServerName + newSuffix), in(realFolder), in(ServerName)}, links,
		[]string{in(noteName + newSuffix), in(noteName), base})...)
}

func (c changes) removeEmpty(dirs []string) error {
	dirs = slices.Clone(dirs)
	slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) }) // from below to above
	for _, dir := range dirs {
		if !isEmpty(dir) {
			continue
		}
		if err := c.remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// isEmpty reports whether a directory exists, may be read, and holds nothing.
func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// removeOf removes a directory that systemd made for the service: with its content by [os.RemoveAll], or by [os.Remove]
// an empty one. That of a service without a fixed user is a link to another one, which goes, too; no other link is
// followed.
func (c changes) removeOf(dir string, remove func(string) error) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	private := filepath.Join(filepath.Dir(dir), "private", filepath.Base(dir))
	target, _ := filepath.EvalSymlinks(dir) // "" for a link to nothing
	return c.do(func() error {
		if target == private {
			return cmp.Or(remove(private), os.Remove(dir))
		}
		return remove(dir)
	})
}
