package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// Source is a verified release of Ollama.
type Source interface {
	// Version is the release, such as v0.16.1.
	Version() string
	// Origin is the origin of the bytes: "module" and its checksum, or "clone" and its
	// commit.
	Origin() string
	// Export writes the release's files into dst, an existing empty folder.
	Export(ctx context.Context, dst string) error
	// Index reads the release into the index of scratch, a repository of this package
	// without a work tree.
	Index(ctx context.Context, scratch git) error
}

// Origin kinds, the first word of [Source.Origin].
const (
	originModule = "module"
	originClone  = "clone"
)

// OpenSource opens and verifies a release: from the git clone if one is named, else from the
// Go module.
func OpenSource(ctx context.Context, lay Layout, clone, version string) (Source, error) {
	if err := CheckVersion(version); err != nil {
		return nil, err
	}
	if clone != "" {
		return openClone(ctx, clone, version)
	}
	return openModule(ctx, lay, version)
}

// Versions lists the releases that [OpenSource] can open: the releases on the Go module
// proxy and, with a clone, every supported release with a tag in the clone.
func Versions(ctx context.Context, clone string) ([]string, error) {
	if clone == "" {
		return ModuleVersions(), nil
	}
	tags, err := cloneTags(ctx, clone)
	if err != nil {
		return nil, err
	}
	versions := slices.DeleteFunc(tags, func(tag string) bool { return CheckVersion(tag) != nil })
	semver.Sort(versions)
	if len(versions) == 0 {
		return nil, fmt.Errorf("the clone %s has no tag in %s … %s; run git fetch --tags there", clone, OldestVersion, NewestVersion)
	}
	return versions, nil
}

// Fetch materializes a release in lay.Src() and returns its tree. Fetch replaces an existing
// tree; the caller has checked that the tree has nothing to lose.
//
// The new tree is built in a temporary folder and moved in as a whole, so that a failure
// leaves the old tree.
func Fetch(ctx context.Context, lay Layout, source Source) (*Tree, error) {
	tmp, err := tempDir(lay.Dir, sourceTemp)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	fresh, old := filepath.Join(tmp, "new"), filepath.Join(tmp, "old")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return nil, err
	}
	if err := source.Export(ctx, fresh); err != nil {
		return nil, fmt.Errorf("materializing Ollama %s: %w", source.Version(), err)
	}
	if err := initTree(ctx, fresh, source); err != nil {
		return nil, fmt.Errorf("making a git repository of Ollama %s: %w", source.Version(), err)
	}
	if err := os.Rename(lay.Src(), old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("moving the old source tree away: %w", err)
	}
	if err := os.Rename(fresh, lay.Src()); err != nil {
		return nil, fmt.Errorf("moving the new source tree into place: %w", err)
	}
	return OpenTree(ctx, lay.Src())
}

// Names of temporary folders that are used under the build directory's lock.
const (
	sourceTemp = "src"
	formatTemp = "format"
)

// Sweep removes leftovers of killed runs. The caller holds the build
// directory's lock.
func (l Layout) Sweep() error {
	entries, err := os.ReadDir(l.Dir)
	for _, entry := range entries {
		purpose, _, _ := strings.Cut(strings.TrimPrefix(entry.Name(), "."), "-")
		if strings.HasPrefix(entry.Name(), ".") && (purpose == sourceTemp || purpose == formatTemp) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(l.Dir, entry.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("removing leftovers of an earlier run: %w", err)
	}
	return nil
}

// tempDir makes a temporary folder inside the build directory: nothing is written elsewhere.
func tempDir(dir, purpose string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the build directory: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, "."+purpose+"-")
	if err != nil {
		return "", fmt.Errorf("making a temporary folder in the build directory: %w", err)
	}
	return tmp, nil
}
