package ollamasrc

import (
	"context"
	"fmt"
	"io"
)

// TestPackages are those of upstream's packages that the series touches.
var TestPackages = []string{"./api", "./envconfig", "./kvcache", "./llm", "./ml/backend/ggml", "./runner/..."}

// Test runs go test with args in the tree as it is. The flags are those of
// [Build], so that what was compiled for the binary is not compiled again.
func Test(ctx context.Context, lay Layout, tree *Tree, args []string, stdout, stderr io.Writer) error {
	if err := checkTools(); err != nil {
		return err
	}
	if !tree.Vendored() {
		if err := installHeaders(ctx, lay); err != nil {
			return err
		}
	}
	if err := writeWorkspace(lay); err != nil {
		return err
	}
	b := &builder{lay: lay, tree: tree}
	env, err := b.goEnv()
	if err != nil {
		return err
	}
	cmd := command(ctx, "go", append([]string{"test", "-trimpath"}, args...)...)
	cmd.Dir, cmd.Env = lay.Src(), env
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("running go test in %s: %w", Rel(lay.Src()), err)
	}
	return nil
}
