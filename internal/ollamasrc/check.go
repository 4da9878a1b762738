package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/progress"
)

// Check applies the series to a release and reverts it, without a work tree, in a scratch
// repository that is removed afterwards. Check applies as strictly as git am, with no fuzz and
// no three-way merge, and reverts as users without patch-ollama do: git apply --reverse, the
// last patch first. Check returns a [*MisfitError] when a patch does not fit, or when taking
// the series off does not leave exactly the release, as a git tree.
func Check(ctx context.Context, lay Layout, source Source, series Series) error {
	tmp, err := tempDir(lay.Dir, "check")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	scratch := git{dir: tmp, own: true}
	if _, err := scratch.run(ctx, "init", "--quiet", "--bare", "--template="); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp+"/objects/info", 0o755); err != nil {
		return err
	}
	if err := source.Index(ctx, scratch); err != nil {
		return fmt.Errorf("reading Ollama %s: %w", source.Version(), err)
	}
	released, err := scratch.run(ctx, "write-tree")
	if err != nil {
		return err
	}
	for i, file := range series.paths() {
		if _, err := scratch.run(ctx, "apply", "--cached", "--whitespace=nowarn", file); err != nil {
			return misfit(ctx, err, MisfitError{Version: source.Version(), Patch: series.Patches[i].Name})
		}
	}
	for i, file := range slices.Backward(series.paths()) {
		if _, err := scratch.run(ctx, "apply", "--cached", "--reverse", "--whitespace=nowarn", file); err != nil {
			return misfit(ctx, err, MisfitError{Version: source.Version(), Patch: series.Patches[i].Name, Reverting: true})
		}
	}
	left, err := scratch.run(ctx, "write-tree")
	if err != nil || left == released {
		return err
	}
	files, err := scratch.run(ctx, "diff-tree", "-r", "--name-only", released, left)
	if err != nil {
		return err
	}
	return &MisfitError{Version: source.Version(), Reverting: true,
		Detail: "these files are not as released afterwards: " + strings.Join(strings.Fields(files), " ")}
}

// MisfitError is the reason why a series cannot be applied to a release, or be reverted.
type MisfitError struct {
	Version   string
	Patch     string // empty when each patch was reverted and the result differs from the release
	Reverting bool   // the series applies and does not come off
	Detail    string // git's own words: file and line
}

func (e *MisfitError) Error() string {
	verb := "apply to"
	if e.Reverting {
		verb = "come off"
	}
	return fmt.Sprintf("%s does not %s Ollama %s (%s)", e.Patch, verb, e.Version, e.Detail)
}

// misfit completes an error with git's first one, which names a file and a line, and drops the
// advice about continuing by hand.
func misfit(ctx context.Context, cause error, e MisfitError) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e.Detail, _, _ = strings.Cut(cause.Error(), "\n")
	for line := range strings.Lines(cause.Error()) {
		if _, detail, ok := strings.Cut(line, "error: "); ok {
			e.Detail = strings.TrimSpace(detail)
			break
		}
	}
	return &e
}

// touchedFile matches the first line of a file's part of a patch.
var touchedFile = regexp.MustCompile(`(?m)^diff --git a/.+ b/(.+\.go)$`)

// Packages are upstream's Go packages that the series touches, as arguments of go test.
// Ggml's own sources belong to ml/backend/ggml, whose tests call them.
func (s Series) Packages() []string {
	var packages []string
	for _, p := range s.Patches {
		for _, m := range touchedFile.FindAllSubmatch(p.Data, -1) {
			dir := path.Dir(string(m[1]))
			if dir != "." {
				dir = "./" + dir
			}
			packages = append(packages, dir)
		}
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// schedulerTests are upstream's tests of the scheduler. They wait for fixed times, which are
// too short on a busy machine. Additions of the series have tests of their own names.
const schedulerTests = "^TestSched"

// TestArgs are the arguments of go test for upstream's tests of the packages that the series
// touches, except [schedulerTests].
func (s Series) TestArgs() []string {
	return append([]string{"-skip=" + schedulerTests}, s.Packages()...)
}

// Test runs go test with args in the present tree. The flags are those of [Build], so that
// packages compiled for the binary are not compiled again.
func Test(ctx context.Context, lay Layout, tree *Tree, args []string, stdout, stderr io.Writer) error {
	b := &builder{lay: lay, tree: tree}
	if err := b.prepare(); err != nil {
		return err
	}
	cmd, err := b.goCommand(ctx, "test", args...)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = cmd.Run()
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("running go test in %s: %w", Rel(lay.Src()), err)
}

// TrialLayout is the layout of [Try] in a build directory. Logs stay after trials.
func TrialLayout(lay Layout) Layout {
	return Layout{Root: lay.Root, Dir: filepath.Join(lay.Dir, "trial")}
}

// Try materializes a release with the series applied in lay, a [TrialLayout], where it replaces
// the previous one. Try builds the binary with cgo's CPU backend, asks the binary for its
// version, and vets the packages that the series touches, which compiles their tests: built is
// true once all this has succeeded. Then Try runs upstream's tests with [Series.TestArgs].
//
// All releases are tried at one path, one after another: Go's cache finds cgo's objects by
// the paths in their flags, and neighbouring releases share most of the C code. C code is
// compiled without optimization; CMake's libraries, CUDA among them, are not compiled.
func Try(ctx context.Context, lay Layout, source Source, series Series, report *progress.Display) (built bool, err error) {
	b := &builder{lay: lay, report: report, trial: true, opts: BuildOptions{Jobs: runtime.NumCPU()}}
	err = b.step(ctx, "fetch "+source.Version(), func(*progress.Step) error {
		if b.tree, err = Fetch(ctx, lay, source); err != nil {
			return err
		}
		if _, err := b.tree.Apply(ctx, series); err != nil {
			return err
		}
		return b.prepare()
	})
	if err != nil {
		return false, err
	}
	if _, err := b.binary(ctx); err != nil {
		return false, err
	}
	quiet := func(*progress.Step, string) {}
	if err := b.goStep(ctx, quiet, "vet", series.Packages()...); err != nil {
		return false, err
	}
	return true, b.goStep(ctx, quiet, "test", series.TestArgs()...)
}

// EndTrials removes all files of trials in lay except logs.
func EndTrials(lay Layout) error {
	var errs []error
	for _, path := range []string{lay.Src(), lay.Include(), filepath.Dir(lay.Binary()), lay.GoWork()} {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}
