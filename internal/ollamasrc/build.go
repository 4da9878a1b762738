package ollamasrc

import (
	"context"
	"fmt"
	"os"
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
	v := numeric(release) + "+kvtier." + SourceVersion(ctx, root)
	for _, set := range leftOut {
		v += ".without-" + set
	}
	return v
}

type builder struct {
	lay    Layout
	tree   *Tree
	opts   BuildOptions
	report *progress.Display
	trial  bool // the build of a [Trial]
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

// prepare makes the files that a Go command in the tree needs: the headers that a module
// lacks, and the workspace.
func (b *builder) prepare() error {
	if err := checkTools(); err != nil {
		return err
	}
	if !b.tree.Vendored() {
		if err := installHeaders(b.lay); err != nil {
			return err
		}
	}
	return writeWorkspace(b.lay)
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

// binary builds the Go part and returns the version that it reports. The Go command's cache
// knows stale packages.
func (b *builder) binary(ctx context.Context) (string, error) {
	env, err := b.goEnv()
	if err != nil {
		return "", err
	}
	leftOut, err := b.tree.Without()
	if err != nil {
		return "", err
	}
	want := BuildVersion(ctx, b.lay.Root, b.tree.Version, leftOut...)
	ldflags := strings.Join([]string{
		"-s", "-w",
		"-X=" + ModulePath + "/version.Version=" + want,
		"-X=" + ModulePath + "/server.mode=release",
	}, " ")
	name := b.stepName("go build")
	err = b.step(ctx, name, func(s *progress.Step) error {
		cmd := command(ctx, "go", "build", "-v", "-trimpath", "-p", strconv.Itoa(b.opts.Jobs), "-ldflags", ldflags, "-o", b.lay.Binary(), ".")
		cmd.Dir = b.lay.Src()
		cmd.Env = env
		packages := 0
		return runStep(ctx, b.lay, name, cmd, func(line string) {
			if isPackageLine(line) {
				packages++
				s.Say(Plural(packages, "package"))
			}
		})
	})
	if err != nil {
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

// stepName gives the steps of several trials in one folder different names.
func (b *builder) stepName(step string) string {
	if b.trial {
		return step + " " + b.tree.Version
	}
	return step
}

// isPackageLine distinguishes the import paths that go build -v prints from compiler output.
func isPackageLine(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:#")
}

// headerExts are the extensions of C files that cgo's cache key may miss.
var headerExts = map[string]bool{".h": true, ".hpp": true, ".cuh": true, ".inc": true}

// goEnv sets all variables that would change the build: flags from the environment, the
// workspace, cgo.
func (b *builder) goEnv() ([]string, error) {
	// Cgo's cache key covers a package's own folder and its flags, not headers
	// in other folders. A patched ggml.h would leave stale objects behind, so
	// the headers' digest is made a flag.
	digest, err := digestFiles(b.lay.Src(), []string{"ml/backend/ggml", "llama"}, func(name string) bool {
		return headerExts[filepath.Ext(name)]
	})
	if err != nil {
		return nil, err
	}
	cpp := []string{os.Getenv("CGO_CPPFLAGS"), "-DKVTIER_HEADERS=0x" + digest[:8]}
	if !b.tree.Vendored() {
		cpp = append(cpp, "'-I"+b.lay.Include()+"'")
	}
	environ := os.Environ()
	if b.trial {
		environ = append(environ, "CGO_CFLAGS=-O0", "CGO_CXXFLAGS=-O0")
	}
	return append(environ,
		"GOWORK="+b.lay.GoWork(),
		// Not empty: an empty variable falls back to go env -w. The binary needs no git
		// commit of the tree: its version identifies it.
		"GOFLAGS=-buildvcs=false",
		"GO111MODULE=on",
		// The libraries are this machine's; so is the binary.
		"GOOS="+runtime.GOOS,
		"GOARCH="+runtime.GOARCH,
		"CGO_ENABLED=1",
		"CGO_CPPFLAGS="+strings.TrimSpace(strings.Join(cpp, " ")),
	), nil
}
