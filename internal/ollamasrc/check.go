package ollamasrc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
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
