package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/vfs"
)

// aside returns the repair of a file that is no good: into quarantine with it.
func (c *checker) aside(ctx context.Context, e entry, reason string) func() (string, error) {
	return func() (string, error) {
		to, err := c.t.setAside(e.path, reason)
		if errors.Is(err, ErrNotFound) {
			return "gone already", nil
		}
		if err != nil {
			return "", err
		}
		if e.kind == entryPage && c.good(ctx, to, e.name) {
			// A server has stored the page again since it was read.
			if err := c.t.fs.Rename(to, e.path); err != nil {
				return "", err
			}
			c.t.syncAside(e.path)
			return "stored again meanwhile, and good", nil
		}
		c.t.trimQuarantine(filepath.Dir(to))
		c.t.syncAside(e.path)
		return "moved to quarantine as " + filepath.Base(to), nil
	}
}

// good reports whether the file at path is a whole page of that name.
func (c *checker) good(ctx context.Context, path string, name Name) bool {
	s, err := newSweeper(nil)
	if err != nil {
		return false
	}
	defer s.close()
	return c.sweepFile(ctx, s, path, name) == nil
}

// replaceManifest moves a manifest that cannot be used to quarantine and puts
// the other tier's in its place.
func (c *checker) replaceManifest(ctx context.Context, e entry) (string, error) {
	done, err := c.aside(ctx, e, "damaged")()
	if err != nil {
		return "", err
	}
	copied, err := c.copyManifest(ctx, e.name.Fingerprint)
	if copied != "" {
		done += ", " + copied
	}
	return done, err
}

// copyManifest takes a missing manifest over from the other tier. There is no
// other way to make one: an identity that was made up would keep the true one
// from being written.
func (c *checker) copyManifest(ctx context.Context, fp Key) (string, error) {
	if c.other == nil {
		return "", nil
	}
	m, err := readManifest(ctx, c.other, fp)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrDamaged) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if err := writeManifest(ctx, c.t, fp, m); err != nil {
		return "", err
	}
	return "copied from the other tier", nil
}

const (
	rightsFile = 0o600
	rightsDir  = 0o700

	opChmod vfs.Op = "chmod"
)

// fixMode takes away what others may do. Nobody else can put a link in the way:
// everything above is this user's alone, or the root would have been refused.
func (c *checker) fixMode(e entry) (string, error) {
	mode := os.FileMode(rightsFile)
	if e.info.IsDir() {
		mode = rightsDir
	}
	chmod := func() error { return os.Chmod(e.path, mode) }
	if fsys, ok := c.t.fs.(*vfs.Bounded); ok {
		unbounded := chmod
		chmod = func() error { return fsys.Do(opChmod, e.path, unbounded) }
	}
	if err := chmod(); err != nil {
		return "", err
	}
	return fmt.Sprintf("mode set to %04o", mode), nil
}

// tempGroup is what one process has in the temporary directory.
type tempGroup struct {
	lock  *entry
	files []entry
}

// checkTemps tells the temporary files of living processes from what dead ones
// left, and removes those in a repair.
func (c *checker) checkTemps(ctx context.Context) error {
	groups := make(map[string]*tempGroup)
	for _, e := range c.temps {
		base := filepath.Base(e.path)
		id, isLock := strings.CutSuffix(base, lockExt)
		if !isLock {
			var ok bool
			if id, _, ok = strings.Cut(base, "-"); !ok || filepath.Ext(base) != tmpExt {
				c.found(e, ProblemForeign, "no file of a page store has such a name", nil)
				continue
			}
		}
		g := groups[id]
		if g == nil {
			g = new(tempGroup)
			groups[id] = g
		}
		if isLock {
			g.lock = &e
			continue
		}
		g.files = append(g.files, e)
		c.rep.TempFiles++
		c.rep.AsideBytes += c.t.fs.PhysicalBytes(e.info)
	}
	for id, g := range groups {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.checkTempGroup(id, g); err != nil {
			return err
		}
	}
	return nil
}

// checkTempGroup looks at one process's files. While its lock is held here it is
// dead, and stays so. It returns the error of a tier that does not answer.
func (c *checker) checkTempGroup(id string, g *tempGroup) error {
	files := &tempFiles{lock: g.lock != nil}
	stale := g.files
	for _, e := range g.files {
		files.paths = append(files.paths, e.path)
	}
	if g.lock != nil {
		stale = append(stale, *g.lock)
	}
	j, err := c.t.temp.judge(id, files, c.opt.Repair)
	switch {
	case NoAnswer(err):
		return err
	case err != nil:
		c.found(stale[len(stale)-1], ProblemUnchecked, err.Error(), nil)
		return nil
	case j.alive:
		c.rep.Processes++
		return nil
	case j.held != nil:
		defer j.held.Close()
		for _, e := range stale {
			c.foundStale(e, "its process is dead")
		}
		return nil
	}
	// Where locks tell nothing, age does.
	stale = nil
	if j.idle > orphanAge {
		stale = g.files
	}
	if j.lockOver {
		stale = append(stale[:len(stale):len(stale)], *g.lock)
	}
	for _, e := range stale {
		c.foundStale(e, fmt.Sprintf("nobody has written it for %v", j.idle.Round(time.Minute)))
	}
	return nil
}

func (c *checker) foundStale(e entry, why string) {
	c.found(e, ProblemStale, why, func() (string, error) {
		if err := c.t.fs.Remove(e.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return "removed", nil
	})
}
