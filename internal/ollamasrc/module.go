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
	"strings"

	"golang.org/x/mod/sumdb/dirhash"
)

// module is a release in the Go module cache.
type module struct {
	version string
	sum     string
	dir     string
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
	return &module{version: version, sum: want, dir: dl.Dir}, nil
}

// download is the report of `go mod download -json` on a module.
type download struct {
	Dir   string
	Sum   string
	Error string
}

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

func (m *module) Version() string { return m.version }
func (m *module) Origin() string  { return originModule + " " + m.sum }

func (m *module) Export(_ context.Context, dst string) error {
	return os.CopyFS(dst, os.DirFS(m.dir))
}

func (m *module) Index(ctx context.Context, scratch git) error {
	reader := git{dir: m.dir, own: true, env: []string{"GIT_DIR=" + scratch.dir, "GIT_WORK_TREE=" + m.dir}}
	// --force: Ollama's .gitignore names folders that its releases contain.
	_, err := reader.run(ctx, "add", "--all", "--force", ".")
	return err
}
