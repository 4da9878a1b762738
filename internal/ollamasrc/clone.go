package ollamasrc

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
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

// Export unpacks the output of git archive, which does not touch the clone's work tree,
// index and worktree list.
func (c *clone) Export(ctx context.Context, dst string) error {
	cmd := c.git.command(ctx, "-c", "core.autocrlf=false", "archive", "--format=tar", c.commit)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return gitError(ctx, []string{"archive"}, err, "")
	}
	unpackErr := untar(dst, stdout)
	if unpackErr != nil {
		// git would block on a pipe without a reader.
		_ = cmd.Cancel()
	}
	if err := cmd.Wait(); err != nil && (unpackErr == nil || stderr.Len() > 0) {
		return gitError(ctx, []string{"archive"}, err, stderr.String())
	}
	return unpackErr
}

func (c *clone) Index(ctx context.Context, scratch git) error {
	alternates := filepath.Join(scratch.dir, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(c.objects+"\n"), 0o644); err != nil {
		return err
	}
	_, err := scratch.run(ctx, "read-tree", c.commit+"^{tree}")
	return err
}

// untar writes folders, files and symlinks. untar refuses any other entry and any name that
// leads out of dst.
func untar(dst string, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The archive's padding follows; git must be able to write the padding.
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := untarEntry(dst, h, tr); err != nil {
			return err
		}
	}
}

func untarEntry(dst string, h *tar.Header, r io.Reader) error {
	name := filepath.FromSlash(strings.TrimSuffix(h.Name, "/"))
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive holds %q, a name outside the tree", h.Name)
	}
	path := filepath.Join(dst, name)
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, 0o755)
	case tar.TypeSymlink:
		target := filepath.FromSlash(h.Linkname)
		if filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), target)) {
			return fmt.Errorf("the archive holds %q, a link outside the tree", h.Name)
		}
		return os.Symlink(h.Linkname, path)
	case tar.TypeReg:
		return untarFile(path, h.Mode&0o100 != 0, r)
	default:
		return fmt.Errorf("the archive holds %q, which is neither a file nor a folder", h.Name)
	}
}

func untarFile(path string, executable bool, r io.Reader) error {
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
