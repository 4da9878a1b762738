package ollamasrc

import (
	"context"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
)

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
