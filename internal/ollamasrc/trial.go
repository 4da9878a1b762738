package ollamasrc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"github.com/kvtier/kvtier/internal/progress"
)

// trialDir is the folder of the build directory in which releases are tried.
const trialDir = "trial"

// Trial is a release with the series applied, materialized to test whether it builds and
// passes upstream's tests, and then removed.
//
// All releases are tried at one path, one after another: Go's cache finds cgo's objects by
// the paths in their flags, and neighbouring releases share most of the C code. C code is
// compiled without optimization; CMake's libraries, CUDA among them, are not compiled.
type Trial struct {
	b      *builder
	series Series
}

// TrialLayout is the layout of trials in a build directory. Logs stay after trials.
func TrialLayout(lay Layout) Layout {
	return Layout{Root: lay.Root, Dir: filepath.Join(lay.Dir, trialDir)}
}

// NewTrial materializes a release in lay, a [TrialLayout], and replaces the previous trial.
func NewTrial(ctx context.Context, lay Layout, source Source, series Series, report *progress.Display) (*Trial, error) {
	b := &builder{lay: lay, report: report, trial: true, opts: BuildOptions{Jobs: runtime.NumCPU()}}
	step := report.Step("fetch " + source.Version())
	tree, err := Fetch(ctx, lay, source)
	if err == nil {
		_, err = tree.Apply(ctx, series)
	}
	if err == nil {
		b.tree = tree
		err = b.prepare()
	}
	step.End("", err)
	if err != nil {
		return nil, err
	}
	return &Trial{b: b, series: series}, nil
}

// Build builds the binary with cgo's CPU backend, asks the binary for its version, and vets
// the packages that the series touches, which compiles their tests.
func (t *Trial) Build(ctx context.Context) error {
	if _, err := t.b.binary(ctx); err != nil {
		return err
	}
	return t.golang(ctx, "vet", t.series.Packages())
}

// Test runs upstream's tests with [Series.TestArgs].
func (t *Trial) Test(ctx context.Context) error {
	return t.golang(ctx, "test", t.series.TestArgs())
}

func (t *Trial) golang(ctx context.Context, verb string, args []string) error {
	env, err := t.b.goEnv()
	if err != nil {
		return err
	}
	name := t.b.stepName("go " + verb)
	return t.b.step(ctx, name, func(*progress.Step) error {
		cmd := command(ctx, "go", append([]string{verb, "-trimpath"}, args...)...)
		cmd.Dir, cmd.Env = t.b.lay.Src(), env
		return runStep(ctx, t.b.lay, name, cmd, func(string) {})
	})
}

// EndTrials removes all files of trials in lay except logs.
func EndTrials(lay Layout) error {
	var errs []error
	for _, path := range []string{lay.Src(), lay.Include(), filepath.Dir(lay.Binary()), lay.GoWork()} {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}
