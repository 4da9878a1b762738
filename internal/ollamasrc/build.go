package ollamasrc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/progress"
)

// BuildOptions are the options of a build. The zero value of each field except Jobs is a
// valid choice.
type BuildOptions struct {
	// Jobs bounds the compilers that run at once; it must be positive.
	Jobs int
	// CUDA builds the CUDA backend when a CUDA compiler is found.
	CUDA bool
	// CUDAArchitectures is CMake's list, such as "61;75". Empty means the architectures of
	// this machine's GPUs.
	CUDAArchitectures string
}

// BuildVersion is the version that a patched binary reports: Ollama's version, with kvtier's
// version in the checkout at root as its build part, and after that the optional sets that it
// was built without.
func BuildVersion(ctx context.Context, root, release string, leftOut ...string) string {
	v := strings.TrimPrefix(release, "v") + "+kvtier." + SourceVersion(ctx, root)
	for _, set := range leftOut {
		v += ".without-" + set
	}
	return v
}

// builder runs the programs that build a tree.
type builder struct {
	lay    Layout
	tree   *Tree
	opts   BuildOptions
	report *progress.Display
	trial  bool // the build of [Try]
}

// Build compiles the tree as it is: libraries with CMake, then the binary. Build returns the
// version that the binary reports.
func Build(ctx context.Context, lay Layout, tree *Tree, opts BuildOptions, report *progress.Display) (string, error) {
	b := &builder{lay: lay, tree: tree, opts: opts, report: report}
	if err := b.prepare(); err != nil {
		return "", err
	}
	if needsCMake() {
		if err := b.libraries(ctx); err != nil {
			return "", err
		}
	}
	return b.binary(ctx)
}

// step reports fn's duration and outcome.
func (b *builder) step(ctx context.Context, name string, fn func(*progress.Step) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := b.report.Step(name)
	err := fn(s)
	s.End("", err)
	return err
}

// goStep runs a Go command in the tree as a step.
func (b *builder) goStep(ctx context.Context, watch func(*progress.Step, string), verb string, args ...string) error {
	name := "go " + verb
	if b.trial { // several releases in one folder of logs
		name += " " + b.tree.Version
	}
	return b.step(ctx, name, func(s *progress.Step) error {
		cmd, err := b.goCommand(ctx, verb, args...)
		if err != nil {
			return err
		}
		return runLogged(ctx, b.lay, name, cmd, func(line string) { watch(s, line) })
	})
}

// binary builds the Go part and returns the version that it reports. The Go command's cache
// knows stale packages.
func (b *builder) binary(ctx context.Context) (string, error) {
	leftOut, err := b.tree.Without()
	if err != nil {
		return "", err
	}
	want := BuildVersion(ctx, b.lay.Root, b.tree.Version, leftOut...)
	ldflags := "-s -w -X=" + ModulePath + "/version.Version=" + want + " -X=" + ModulePath + "/server.mode=release"
	packages := 0
	count := func(s *progress.Step, line string) {
		if isPackageLine(line) {
			packages++
			s.Say(Plural(packages, "package"))
		}
	}
	if err := b.goStep(ctx, count, "build", "-v", "-p", strconv.Itoa(b.opts.Jobs), "-ldflags", ldflags, "-o", b.lay.Binary(), "."); err != nil {
		return "", err
	}
	got, err := BinaryVersion(ctx, b.lay.Binary())
	if err != nil {
		return "", err
	}
	if got != want {
		return "", fmt.Errorf("%s reports version %s, but %s was built; remove it and build again", Rel(b.lay.Binary()), got, want)
	}
	return got, nil
}

// isPackageLine distinguishes the import paths that go build -v prints from compiler output.
func isPackageLine(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:#")
}

// goCommand is a Go command in the tree, with all variables set that would change the build:
// flags from the environment, the workspace, cgo.
func (b *builder) goCommand(ctx context.Context, verb string, args ...string) (*exec.Cmd, error) {
	// Cgo's cache key covers a package's own folder and its flags, not headers
	// in other folders. A patched ggml.h would leave stale objects behind, so
	// the headers' digest is made a flag.
	digest, err := digestFiles(b.lay.Src(), []string{"ml/backend/ggml", "llama"}, isHeader)
	if err != nil {
		return nil, err
	}
	cpp := os.Getenv("CGO_CPPFLAGS") + " -DKVTIER_HEADERS=0x" + digest[:8]
	if !b.tree.Vendored() {
		cpp += " '-I" + b.lay.Include() + "'"
	}
	cmd := command(ctx, "go", append([]string{verb, "-trimpath"}, args...)...)
	cmd.Dir = b.lay.Src()
	cmd.Env = os.Environ()
	if b.trial {
		cmd.Env = append(cmd.Env, "CGO_CFLAGS=-O0", "CGO_CXXFLAGS=-O0")
	}
	cmd.Env = append(cmd.Env,
		"GOWORK="+b.lay.GoWork(),
		// Not empty: an empty variable falls back to go env -w. The binary needs no git
		// commit of the tree: its version identifies it.
		"GOFLAGS=-buildvcs=false",
		"GO111MODULE=on",
		// The libraries are this machine's; so is the binary.
		"GOOS="+runtime.GOOS,
		"GOARCH="+runtime.GOARCH,
		"CGO_ENABLED=1",
		"CGO_CPPFLAGS="+strings.TrimSpace(cpp),
	)
	return cmd, nil
}

// isHeader reports whether cgo's cache key may miss a C file.
func isHeader(name string) bool {
	switch filepath.Ext(name) {
	case ".h", ".hpp", ".cuh", ".inc":
		return true
	}
	return false
}

// digestFiles hashes names and contents of the files under root's entries that keep accepts, or
// of all if keep is nil. Missing entries count as empty.
func digestFiles(root string, entries []string, keep func(name string) bool) (string, error) {
	h, source := sha256.New(), os.DirFS(root)
	for _, entry := range entries {
		err := fs.WalkDir(source, entry, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || keep != nil && !keep(name) {
				return err
			}
			data, err := fs.ReadFile(source, name)
			if err == nil {
				fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("hashing %s: %w", Rel(filepath.Join(root, entry)), err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
