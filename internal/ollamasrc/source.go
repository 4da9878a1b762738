package ollamasrc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
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
	OriginModule = "module"
	OriginClone  = "clone"
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
	tags, err := inClone(ctx, clone, "tag", "--list")
	if err != nil {
		return nil, err
	}
	versions := slices.DeleteFunc(strings.Fields(tags), func(tag string) bool { return CheckVersion(tag) != nil })
	semver.Sort(versions)
	if len(versions) == 0 {
		return nil, fmt.Errorf("the clone %s has no tag in %s … %s; run git fetch --tags there", clone, OldestVersion, NewestVersion)
	}
	return versions, nil
}

// release is what both kinds of [Source] know of themselves.
type release struct{ version, origin string }

func (r release) Version() string { return r.version }
func (r release) Origin() string  { return r.origin }

// module is a release in the Go module cache.
type module struct {
	release
	dir string
}

// openModule downloads a release through the Go command and checks the pinned sum: first
// against the sum that the Go command reports, then against the unpacked files, which the Go
// command verifies only while unpacking.
func openModule(ctx context.Context, lay Layout, version string) (*module, error) {
	want, ok := moduleSums[version]
	if !ok {
		return nil, fmt.Errorf("Ollama %s is not on the Go module proxy (%s are); clone https://%s and pass it with --src",
			version, strings.Join(ModuleVersions(), ", "), ModulePath)
	}
	dl, err := downloadModule(ctx, lay, version)
	if err != nil {
		return nil, err
	}
	if dl.Sum != want {
		return nil, fmt.Errorf("the Go module %s@%s has checksum %s, but %s is pinned; do not use it", ModulePath, version, dl.Sum, want)
	}
	got, err := dirhash.HashDir(dl.Dir, ModulePath+"@"+version, dirhash.Hash1)
	if err != nil {
		return nil, fmt.Errorf("verifying the Go module in %s: %w", dl.Dir, err)
	}
	if got != want {
		return nil, fmt.Errorf("the files in %s were changed (checksum %s, pinned %s); run go clean -modcache and try again", dl.Dir, got, want)
	}
	return &module{release{version, OriginModule + " " + want}, dl.Dir}, nil
}

// download is the report of `go mod download -json` on a module.
type download struct{ Dir, Sum, Error string }

// downloadModule runs in a throw-away module: inside kvtier's own module, the Go command
// would add lines to go.sum. The checksum database is not asked, because the sum is pinned.
func downloadModule(ctx context.Context, lay Layout, version string) (download, error) {
	tmp, err := tempDir(lay.Dir, "download")
	if err != nil {
		return download{}, err
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "go.mod"), []byte("module download\n"), 0o644); err != nil {
		return download{}, err
	}
	cmd := command(ctx, "go", "mod", "download", "-json", ModulePath+"@"+version)
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GO111MODULE=on", "GONOSUMDB="+ModulePath)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return download{}, ctx.Err()
	}
	if errors.Is(runErr, exec.ErrNotFound) {
		return download{}, errNoGo
	}
	var dl download
	if err := json.Unmarshal(stdout.Bytes(), &dl); err != nil && runErr == nil {
		return download{}, fmt.Errorf("reading the report of go mod download on Ollama %s: %w", version, err)
	}
	if runErr != nil || dl.Error != "" {
		if dl.Error == "" {
			dl.Error = strings.TrimSpace(stderr.String() + " " + runErr.Error())
		}
		return download{}, fmt.Errorf("downloading the Go module of Ollama %s: %s; check the network and GOPROXY, or pass a git clone with --src", version, dl.Error)
	}
	return dl, nil
}

func (m *module) Export(_ context.Context, dst string) error {
	return os.CopyFS(dst, os.DirFS(m.dir))
}

func (m *module) Index(ctx context.Context, scratch git) error {
	reader := git{dir: m.dir, own: true, env: []string{"GIT_DIR=" + scratch.dir, "GIT_WORK_TREE=" + m.dir}}
	// --force: Ollama's .gitignore names folders that its releases contain.
	_, err := reader.run(ctx, "add", "--all", "--force", ".")
	return err
}

// clone is a release in the user's git clone of Ollama, which is only read.
type clone struct {
	release
	git     git
	commit  string
	objects string // the clone's object store
}

func openClone(ctx context.Context, dir, version string) (*clone, error) {
	// The path is relative to the clone unless it is absolute.
	objects, err := inClone(ctx, dir, "rev-parse", "--git-path", "objects")
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(objects) {
		objects = filepath.Join(dir, objects)
	}
	if objects, err = filepath.Abs(objects); err != nil {
		return nil, err
	}
	commit, err := git{dir: dir}.run(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+version+"^{commit}")
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("the clone %s has no tag %s; run git fetch --tags there", dir, version)
	}
	return &clone{release{version, OriginClone + " " + commit}, git{dir: dir}, commit, objects}, nil
}

// inClone runs git in a folder that must be a clone.
func inClone(ctx context.Context, dir string, args ...string) (string, error) {
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("opening the git clone of Ollama: %w", err)
	}
	out, err := git{dir: dir}.run(ctx, args...)
	if err != nil && !errors.Is(err, errNoGit) && ctx.Err() == nil {
		err = fmt.Errorf("%s is not a git clone of Ollama: %w", dir, err)
	}
	return out, err
}

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
