package ollamasrc

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/version"
)

// linked are the files of the checkout that are part of the patched binary. Packages that
// only kvtier's programs and tests use are left out by name: a package that is not named
// counts.
var linked = append(
	[]string{"diskstore", "elastic", "engine", "ggml-paged", "internal", "kvcache", "pagedenv", "patches", "rates", "telemetry", "go.mod", "go.sum"},
	except(
		"internal/bench/**", "internal/cli/**", "internal/docs/**", "internal/e2e/**", "internal/llamae2e/**",
		"internal/llamatest/**", "internal/mounts/**", "internal/ollamasrc/**", "internal/ollamatest/**", "internal/progress/**",
		"internal/soak/**", "internal/table/**", "internal/testmodel/**", "internal/version/**",
		"**/*_test.go", "**/testdata/**", "**/*.md",
	)...,
)

// except turns patterns into git arguments that leave files out.
func except(patterns ...string) []string {
	var args []string
	for _, pattern := range patterns {
		args = append(args, ":(exclude,glob)"+pattern)
	}
	return args
}

// SourceVersion is the version of the checkout in root that the patched binary reports: a
// release's version, or that of the last commit that changed the binary. Pages belong to the
// bytes of the binary that computed them, so a commit to documents or tests alone must not
// change the version.
func SourceVersion(ctx context.Context, root string) string {
	// An unpacked archive of the source may be inside another repository.
	g := git{dir: root, env: []string{"GIT_CEILING_DIRECTORIES=" + filepath.Dir(root)}}
	v, err := describe(ctx, g)
	if err != nil {
		return version.Unreleased
	}
	return v
}

func describe(ctx context.Context, g git) (string, error) {
	onLinked := func(args ...string) (string, error) { return g.run(ctx, append(append(args, "--"), linked...)...) }
	changes, err := onLinked("status", "--porcelain")
	if err != nil {
		return "", err
	}
	tag, err := g.run(ctx, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
	if err == nil && changes == "" {
		since, err := onLinked("diff", "--name-only", tag, "HEAD")
		if err != nil {
			return "", err
		}
		if since == "" {
			return strings.TrimPrefix(tag, "v"), nil
		}
	}
	hash, err := onLinked("log", "-1", "--format=%H")
	if err != nil {
		return "", err
	}
	return version.OfCommit(hash, changes != ""), nil
}
