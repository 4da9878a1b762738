package ollamasrc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Check applies the series to a release and reverts it, without a work tree, in a scratch
// repository that is removed afterwards. Check returns an [*ApplyError] when a patch does
// not fit, and a [*RevertError] when taking the series off does not leave exactly the
// release.
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
	if err := tryApply(ctx, scratch, source.Version(), series); err != nil {
		return err
	}
	return tryRevert(ctx, scratch, source.Version(), series, released)
}

// tryApply applies the series as strictly as git am: no fuzz, no three-way merge.
func tryApply(ctx context.Context, scratch git, version string, series Series) error {
	for i, file := range series.paths() {
		if _, err := scratch.run(ctx, "apply", "--cached", "--whitespace=nowarn", file); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &ApplyError{Version: version, Patch: series.Patches[i].Name, Detail: applyDetail(err)}
		}
	}
	return nil
}

// tryRevert reverts the series as users without patch-ollama do: git apply --reverse, the
// last patch first. The result is compared byte for byte, as a git tree.
func tryRevert(ctx context.Context, scratch git, version string, series Series, released string) error {
	for i, file := range slices.Backward(series.paths()) {
		if _, err := scratch.run(ctx, "apply", "--cached", "--reverse", "--whitespace=nowarn", file); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &RevertError{Version: version, Patch: series.Patches[i].Name, Detail: applyDetail(err)}
		}
	}
	left, err := scratch.run(ctx, "write-tree")
	if err != nil {
		return err
	}
	if left == released {
		return nil
	}
	files, err := scratch.run(ctx, "diff-tree", "-r", "--name-only", released, left)
	if err != nil {
		return err
	}
	return &RevertError{Version: version, Detail: "these files are not as released afterwards: " + strings.Join(strings.Fields(files), " ")}
}

// RevertError is the reason why a series cannot be reverted on a release.
type RevertError struct {
	Version string
	Patch   string // empty when each patch was reverted and the result differs from the release
	Detail  string
}

func (e *RevertError) Error() string {
	if e.Patch == "" {
		return fmt.Sprintf("taking the series off Ollama %s: %s", e.Version, e.Detail)
	}
	return fmt.Sprintf("%s does not come off Ollama %s (%s)", e.Patch, e.Version, e.Detail)
}
