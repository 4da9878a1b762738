package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

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

// initTree turns a folder of released files into a repository with one commit.
func initTree(ctx context.Context, dir string, source Source) error {
	g := git{dir: dir, own: true, env: []string{
		"GIT_AUTHOR_DATE=" + baseDate,
		"GIT_COMMITTER_DATE=" + baseDate,
	}}
	message := fmt.Sprintf("ollama %s\n\nOrigin: %s\n", source.Version(), source.Origin())
	for _, args := range [][]string{
		{"init", "--quiet", "--template=", "--initial-branch=kvtier"},
		// --force: Ollama's .gitignore names folders that its releases contain.
		{"add", "--all", "--force", "."},
		{"commit", "--quiet", "--no-verify", "--message", message},
		{"tag", upstreamTag},
	} {
		if _, err := g.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
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
