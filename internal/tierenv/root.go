package tierenv

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/env"
)

const (
	// DefaultRoot is the default directory of pages, below the home directory of the
	// server's user: in Ollama's own folder.
	DefaultRoot = ".ollama/kv-cache"

	// FormerRoot is the former default. Many systems delete files in /tmp when they boot, or by age.
	FormerRoot = "/tmp/ollama-kv-cache"
)

// root is the directory of the local tier, and the reason for the choice: LocalVariable, or a sentence.
type root struct{ path, why string }

// localRoot returns the directory of OLLAMA_KV_TIER_LOCAL, or a default that can keep pages.
// localRoot creates nothing.
func localRoot() (root, error) {
	if path := env.Value(LocalVariable); path != "" {
		return root{path, LocalVariable}, nil
	}
	r := roots{former: FormerRoot, unsuited: unsuited}
	home, err := os.UserHomeDir()
	if err == nil {
		r.own = filepath.Join(home, filepath.FromSlash(DefaultRoot))
	} else {
		r.homeless = fmt.Errorf("no home directory to keep pages in: %w", err)
	}
	return r.choose()
}

// log logs a directory that was chosen by default, in one line.
func (r root) log(log *slog.Logger) {
	if r.path == FormerRoot {
		log.Warn("kv tier: pages are kept where many systems delete files when they boot, or by age", "local", r.path, "reason", r.why)
		return
	}
	log.Info("kv tier: pages are kept in the default directory", "local", r.path, "reason", r.why)
}

type roots struct {
	own      string // in Ollama's own folder
	homeless error  // error if there is no home directory
	former   string
	unsuited func(path string) error // reason why a directory cannot be the default, or nil
}

// choose prefers Ollama's own folder, unless only the former default has pages: those are used in place until
// the user moves them. All processes of a user choose the same directory.
func (r roots) choose() (root, error) {
	ownErr := r.homeless
	if ownErr == nil {
		ownErr = r.unsuited(r.own)
	}
	formerErr := r.unsuited(r.former)
	formerHolds := formerErr == nil && holdsPages(r.former)
	switch {
	case ownErr != nil && formerErr != nil:
		return root{}, fmt.Errorf("no directory for pages: set OLLAMA_KV_TIER_LOCAL to one on a local disk (%w; %w)", ownErr, formerErr)
	case ownErr != nil:
		return root{r.former, ownErr.Error() + "; set OLLAMA_KV_TIER_LOCAL to a directory on a local disk"}, nil
	case formerHolds && !holdsPages(r.own):
		return root{r.former, fmt.Sprintf("it holds pages, and %s holds none; to move them stop the server, copy all of it there with cp -a, and remove it", r.own)}, nil
	case formerHolds:
		return root{r.own, fmt.Sprintf("Ollama's own folder; pages that are left in %s, the former default, are not used", r.former)}, nil
	}
	return root{r.own, "Ollama's own folder"}, nil
}

// unsuited returns the reason why a directory should not keep pages by default, or nil.
func unsuited(path string) error {
	if !filepath.IsAbs(path) { // on Windows, /tmp names no drive
		return fmt.Errorf("%s is not an absolute path", path)
	}
	if err := dir.CheckRoot(vfs.OS, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	there, err := Nearest(path)
	if err != nil {
		return err
	}
	ram, err := vfs.OS.IsRAM(there)
	if err != nil {
		return err
	}
	if ram {
		return fmt.Errorf("%s is on a filesystem in memory", path)
	}
	network, err := isNetwork(there)
	if err != nil {
		return err
	}
	if network {
		return fmt.Errorf("%s is on a network filesystem", path)
	}
	if err := Writable(there); err != nil {
		return fmt.Errorf("%s cannot be written: %w", path, err)
	}
	return nil
}

// Nearest is path, or the nearest directory above it that exists.
func Nearest(path string) (string, error) {
	for {
		_, err := os.Stat(vfs.Through(path))
		parent := filepath.Dir(path)
		if !errors.Is(err, fs.ErrNotExist) || parent == path {
			return path, err
		}
		path = parent
	}
}

// holdsPages reports whether a root has a page of any model and server. An unreadable
// directory counts as empty.
func holdsPages(root string) bool {
	found := false
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir
		case slices.Contains([]string{"quarantine", "tmp"}, e.Name()) && filepath.Base(filepath.Dir(path)) == "v1":
			return fs.SkipDir // it holds damaged or incomplete files alone
		case e.Type().IsRegular() && strings.HasSuffix(e.Name(), dir.PageExt):
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}
