package ollamasrc

import (
	"context"
	"fmt"
	"os"
)

// Check tries the series on a release without a work tree, in a scratch
// repository that is removed afterwards. It returns an [*ApplyError] when a
// patch does not fit.
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
	for i, path := range series.paths() {
		// The engine behind git am, and as strict: no fuzz, no three-way merge.
		if _, err := scratch.run(ctx, "apply", "--cached", "--whitespace=nowarn", path); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &ApplyError{Version: source.Version(), Patch: series.Patches[i].Name, Detail: applyDetail(err)}
		}
	}
	return nil
}
