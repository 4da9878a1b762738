package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// aside returns the repair of a bad file: a move to quarantine.
func (c *checker) aside(ctx context.Context, e dir.Entry, reason string) func() (string, error) {
	return func() (string, error) {
		to, err := c.t.SetAside(e.Path, reason)
		if errors.Is(err, tier.ErrNotFound) {
			return "gone already", nil
		}
		if err != nil {
			return "", err
		}
		if e.Kind == dir.EntryPage && c.good(ctx, to, e.Name) {
			// A server has stored the page again since this check read the file.
			if err := c.t.FS.Rename(to, e.Path); err != nil {
				return "", err
			}
			c.t.SyncAside(e.Path)
			return "stored again meanwhile, and good", nil
		}
		c.t.TrimQuarantine(filepath.Dir(to))
		c.t.SyncAside(e.Path)
		return "moved to quarantine as " + filepath.Base(to), nil
	}
}

// good reports whether the file at path is a whole page of that name.
func (c *checker) good(ctx context.Context, path string, name pagefile.Name) bool {
	s, err := pagefile.NewChecker(nil)
	if err != nil {
		return false
	}
	defer s.Close()
	return c.readFile(ctx, s, path, name) == nil
}

// replaceManifest moves an unusable manifest to quarantine and copies the other tier's manifest to its place.
func (c *checker) replaceManifest(ctx context.Context, e dir.Entry) (string, error) {
	done, err := c.aside(ctx, e, "damaged")()
	if err != nil {
		return "", err
	}
	copied, err := c.copyManifest(ctx, e.Name.Fingerprint)
	if copied != "" {
		done += ", " + copied
	}
	return done, err
}

// copyManifest copies a missing manifest from the other tier. A manifest cannot be made in any
// other way: an invented identity would prevent a server from writing the true one.
func (c *checker) copyManifest(ctx context.Context, fp pagefile.Key) (string, error) {
	if c.other == nil {
		return "", nil
	}
	m, err := tier.ReadManifest(ctx, c.other, fp)
	if errors.Is(err, tier.ErrNotFound) || errors.Is(err, pagefile.ErrDamaged) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	m.Origin = "" // a place on this machine
	if err := tier.WriteManifest(ctx, c.t, fp, m); err != nil {
		return "", err
	}
	return "copied from the other tier", nil
}

const (
	rightsFile = 0o600
	rightsDir  = 0o700

	opChmod vfs.Op = "chmod"
)

// fixMode removes the rights of other users. No other user can put a link in the path: this
// user alone may write to the directories above, or the root would have been refused.
func (c *checker) fixMode(e dir.Entry) (string, error) {
	mode := os.FileMode(rightsFile)
	if e.Info.IsDir() {
		mode = rightsDir
	}
	chmod := func() error { return os.Chmod(vfs.Through(e.Path), mode) }
	if fsys, ok := c.t.FS.(*vfs.Bounded); ok {
		unbounded := chmod
		chmod = func() error { return fsys.Do(opChmod, e.Path, unbounded) }
	}
	if err := chmod(); err != nil {
		return "", err
	}
	return fmt.Sprintf("mode set to %04o", mode), nil
}

// checkTemps distinguishes temporary files of living processes from files of dead ones; a
// repair removes the files of dead processes.
func (c *checker) checkTemps(ctx context.Context) error {
	for id, files := range dir.TempsByID(maps.Keys(c.temps)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, path := range files.Paths {
			c.rep.TempFiles++
			c.rep.AsideBytes += c.t.FS.PhysicalBytes(c.temps[path].Info)
		}
		if err := c.checkProcess(id, files); err != nil {
			return err
		}
	}
	return nil
}

// checkProcess checks one process's files. A process whose lock this check holds is dead and
// stays dead. checkProcess returns the error of a tier that does not answer.
func (c *checker) checkProcess(id string, files dir.TempFiles) error {
	j, err := c.t.Temp.Judge(id, files, c.opt.Repair)
	if j.Held != nil {
		defer j.Held.Close()
	}
	why := "its process is dead"
	switch {
	case tier.NoAnswer(err):
		return err
	case err != nil:
		all := files.All()
		c.found(c.temps[all[len(all)-1]], ProblemUnchecked, err.Error(), nil)
	case j.Alive:
		c.rep.Processes++
	case j.Held == nil: // age decides
		why = fmt.Sprintf("nobody has written it for %v", j.Idle.Round(time.Minute))
	}
	for _, path := range j.Stale {
		e := c.temps[path]
		e.Path = path // of a file that was made after the walk
		c.found(e, ProblemStale, why, func() (string, error) {
			if err := c.t.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			return "removed", nil
		})
	}
	return nil
}
