package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Plan lists the steps of an installation or a removal.
type Plan struct {
	Ollama Ollama
	Steps  []Step
	Hints  []string // sentences for the person who decides about the plan

	cannot error        // the reason why this user cannot carry the plan out
	lock   string       // a directory: at most one plan for it is carried out at a time
	fresh  func() error // says whether files have changed since the plan was made
	// undo takes the steps back, if the last one fails, and names the pages that stay.
	undo func(context.Context) (hints []string, err error)
}

// Step is a part of a plan.
type Step struct {
	Text  string // an order, such as "write FILE"
	Shows string // the content of the file, or ""
	do    func(context.Context) error
}

// add adds a step.
func (p *Plan) add(do func(context.Context) error, format string, args ...any) {
	p.Steps = append(p.Steps, Step{Text: fmt.Sprintf(format, args...), do: do})
}

// hint adds a sentence.
func (p *Plan) hint(format string, args ...any) {
	p.Hints = append(p.Hints, fmt.Sprintf(format, args...))
}

// Cannot returns the reason why this user cannot carry the plan out, or nil.
func (p *Plan) Cannot() error {
	if len(p.Steps) == 0 {
		return nil
	}
	return p.cannot
}

// Do carries the plan out. done is called after each step. If a check fails that comes after
// the changes, these are taken back.
func (p *Plan) Do(ctx context.Context, done func(Step)) error {
	if err := p.Cannot(); err != nil {
		return err
	}
	if len(p.Steps) > 0 && p.lock != "" {
		unlock, err := lockDir(p.lock)
		if err != nil {
			return fmt.Errorf("lock %s: %w; another kvtier may be at work there", p.lock, err)
		}
		defer unlock()
	}
	if p.fresh != nil {
		if err := p.fresh(); err != nil {
			return err
		}
	}
	for _, step := range p.Steps {
		err := step.do(ctx)
		var bad *badCheck
		if errors.As(err, &bad) && p.undo != nil {
			hints, undone := p.undo(context.WithoutCancel(ctx))
			if undone != nil {
				return fmt.Errorf("%w; taking it back failed, too (%w); run kvtier ollama remove", err, undone)
			}
			return fmt.Errorf("%w; %s", err, strings.Join(append([]string{"Ollama runs its own llama-server again"}, hints...), ". "))
		}
		if err != nil {
			return fmt.Errorf("%s: %w; run the same command again to continue, or kvtier ollama remove to go back", step.Text, err)
		}
		done(step)
	}
	return nil
}

// badCheck is the failure of a check: the steps before it were carried out.
type badCheck struct{ error }

func (e *badCheck) Unwrap() error { return e.error }

// change makes one change of a file, unless Before refuses it.
func (m *Machine) change(what string, do func() error) error {
	if m.Before != nil {
		if err := m.Before(what); err != nil {
			return err
		}
	}
	return do()
}

// put writes a file. At every moment the path has the old content or the new one.
func (m *Machine) put(path string, content []byte, mode fs.FileMode) error {
	tmp := path + newSuffix
	err := m.change("write "+tmp, func() error {
		err := writeNew(tmp, content, mode, nil)
		if err != nil {
			_ = os.Remove(tmp) // a full disk needs the room
		}
		return err
	})
	if err != nil {
		return err
	}
	return m.rename(tmp, path)
}

// writeNew writes a file that is on disk when writeNew returns. A file that an earlier run
// has left goes. The file gets the owner of like, if there is one.
func writeNew(path string, content []byte, mode fs.FileMode, like fs.FileInfo) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // follows no link
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil && like != nil {
		err = keepOwner(f, like) // before its mode, which a change of owner may cut
	}
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// openSame opens the regular file that info describes, and no other: the owner of its folder may have
// exchanged it since for a link to a file that only root may read, or for a pipe.
func openSame(path string, info fs.FileInfo) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|neverWait, 0)
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

// readSame reads the file that info describes, up to max bytes.
func readSame(path string, info fs.FileInfo, max int64) ([]byte, error) {
	f, err := openSame(path, info)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, max))
}

// copyTo copies a file beside the path, and then to it.
func (m *Machine) copyTo(from, path string, mode fs.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return m.put(path, content, mode)
}

func (m *Machine) rename(from, to string) error {
	return m.change("rename "+from+" to "+filepath.Base(to), func() error {
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

// remove removes files and empty directories, if they exist.
func (m *Machine) remove(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := m.change("remove "+path, func() error { return os.Remove(path) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// mkdir makes a directory and those above it.
func (m *Machine) mkdir(path string, mode fs.FileMode) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
		return nil
	}
	if err := m.mkdir(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return m.change("make "+path, func() error { return os.Mkdir(path, mode) })
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
