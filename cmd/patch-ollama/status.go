package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/spf13/cobra"
)

func newStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the source and the patches in the build directory",
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := a.sourceStatus(cmd.Context())
			if err != nil {
				return err
			}
			build, err := a.buildStatus(cmd.Context())
			if err != nil {
				return err
			}
			for _, line := range append(source, build...) {
				fmt.Fprintf(a.stdout, "%-12s%s\n", line[0], line[1])
			}
			return nil
		},
	}
}

// shortHash is the number of digits of a commit in output.
const shortHash = 12

// sourceStatus lists names and values about the source tree.
func (a *app) sourceStatus(ctx context.Context) ([][2]string, error) {
	t, err := ollamasrc.OpenTree(ctx, a.lay.Src())
	if errors.Is(err, ollamasrc.ErrNoTree) {
		return [][2]string{{"version", "none; run patch-ollama fetch"}}, nil
	}
	if err != nil {
		return nil, err
	}
	series, err := a.series(t)
	if err != nil {
		return nil, err
	}
	state, err := t.Compare(ctx, series)
	if err != nil {
		return nil, err
	}
	tree := "clean"
	if n := len(state.Dirty); n > 0 {
		tree = ollamasrc.Plural(n, "change") + " uncommitted"
	}
	return [][2]string{
		{"version", t.Version}, {"source", t.Origin}, {"base", t.Base[:shortHash]},
		{"patches", patchStatus(state, series)}, {"tree", tree},
	}, nil
}

func patchStatus(state ollamasrc.State, series ollamasrc.Series) string {
	text := fmt.Sprintf("%d/%d applied", state.Applied(), len(series.Patches))
	if len(series.Without) > 0 {
		text += ", without " + strings.Join(series.Without, ", ")
	}
	if !state.InStep && state.Applied() > 0 {
		text += ", of an older series"
	}
	if state.Own > 0 {
		text += fmt.Sprintf(", %s of your own", ollamasrc.Plural(state.Own, "commit"))
	}
	return text
}

// buildStatus lists names and values about the result of a build.
func (a *app) buildStatus(ctx context.Context) ([][2]string, error) {
	binary := "none; run patch-ollama build"
	if _, err := os.Stat(a.lay.Binary()); err == nil {
		binary = ollamasrc.Rel(a.lay.Binary())
		version, err := ollamasrc.BinaryVersion(ctx, a.lay.Binary())
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			binary += " does not run; run patch-ollama build"
		default:
			binary += " " + version
		}
	}
	libraries, err := a.lay.Lib()
	if len(libraries) == 0 {
		libraries = []string{"none"}
	}
	return [][2]string{{"binary", binary}, {"libraries", strings.Join(libraries, " ")}}, err
}
