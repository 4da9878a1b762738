package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// clone is a release in the user's git clone of Ollama, which is only read.
type clone struct {
	git     git
	version string
	commit  string
	objects string // the clone's object store
}

func openClone(ctx context.Context, dir, version string) (*clone, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("opening the git clone of Ollama: %w", err)
	}
	c := &clone{git: git{dir: dir}, version: version}
	// The path is relative to the clone unless it is absolute.
	objects, err := c.git.run(ctx, "rev-parse", "--git-path", "objects")
	if err != nil {
		return nil, cloneError(dir, err)
	}
	if !filepath.IsAbs(objects) {
		objects = filepath.Join(dir, objects)
	}
	if c.objects, err = filepath.Abs(objects); err != nil {
		return nil, err
	}
	c.commit, err = c.git.run(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+version+"^{commit}")
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("the clone %s has no tag %s; run git fetch --tags there", dir, version)
	}
	return c, nil
}

func cloneTags(ctx context.Context, dir string) ([]string, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("opening the git clone of Ollama: %w", err)
	}
	tags, err := git{dir: dir}.run(ctx, "tag", "--list")
	if err != nil {
		return nil, cloneError(dir, err)
	}
	return strings.Fields(tags), nil
}

func cloneError(dir string, err error) error {
	if errors.Is(err, errNoGit) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s is not a git clone of Ollama: %w", dir, err)
}

func (c *clone) Version() string { return c.version }
func (c *clone) Origin() string  { return originClone + " " + c.commit }

// Export checks the commit out of an index of its own: the clone's work tree, index and worktree
// list stay as they are.
func (c *clone) Export(ctx context.Context, dst string) error {
	index, err := os.MkdirTemp(filepath.Dir(dst), "ollamasrc-index-")
	if err != nil {
		return fmt.Errorf("making a temporary index: %w", err)
	}
	defer os.RemoveAll(index)
	out := git{dir: c.git.dir, env: []string{"GIT_INDEX_FILE=" + filepath.Join(index, "index"), "GIT_WORK_TREE=" + dst}}
	for _, args := range [][]string{
		{"-c", "core.hooksPath=/dev/null", "read-tree", c.commit},
		{"-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "checkout-index", "--all", "--quiet"},
	} {
		if _, err := out.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (c *clone) Index(ctx context.Context, scratch git) error {
	alternates := filepath.Join(scratch.dir, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(c.objects+"\n"), 0o644); err != nil {
		return err
	}
	_, err := scratch.run(ctx, "read-tree", c.commit+"^{tree}")
	return err
}
