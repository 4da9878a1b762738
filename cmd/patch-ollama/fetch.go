package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/spf13/cobra"
)

func newFetchCommand(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "fetch",
		Short: "Materialize Ollama's source in the build directory",
		Long: `Materialize Ollama's source in the build directory, as a git repository whose
only commit is the release. The bytes come from the Go module, verified against
a pinned checksum, or with --src from a git clone.

A tree that is there already is left alone. One of another release or origin is
replaced with --force, unless it holds work that would be lost.`,
		RunE: a.locked(func(ctx context.Context, _ []string) error {
			steps := progress.New(a.stderr, stepNames)
			t, fresh, err := a.fetch(ctx, steps, force)
			steps.Close()
			if err != nil {
				return err
			}
			already := "already "
			if fresh {
				already = ""
			}
			fmt.Fprintf(a.stdout, "Ollama %s is %sin %s (%s)\n", t.Version, already, ollamasrc.Rel(t.Dir), t.Origin)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a tree of another release or origin")
	return cmd
}

// fetch materializes the wanted release if missing, and reports whether it was missing.
func (a *app) fetch(ctx context.Context, steps *progress.Display, force bool) (t *ollamasrc.Tree, fresh bool, err error) {
	t, err = ollamasrc.OpenTree(ctx, a.lay.Src())
	switch {
	case errors.Is(err, ollamasrc.ErrNoTree):
	case err != nil:
		return nil, false, err
	case t.Version == a.version && (a.src == "" || t.OriginKind() == ollamasrc.OriginClone):
		return t, false, nil
	case !force:
		return nil, false, a.otherTree(t)
	default:
		if err := a.checkNothingToLose(ctx, t); err != nil {
			return nil, false, err
		}
	}
	step := steps.Step("fetch " + a.version)
	source, err := ollamasrc.OpenSource(ctx, a.lay, a.src, a.version)
	if err == nil {
		t, err = ollamasrc.Fetch(ctx, a.lay, source)
	}
	step.End("", err)
	return t, err == nil, err
}

func (a *app) checkNothingToLose(ctx context.Context, t *ollamasrc.Tree) error {
	series, err := a.series(t)
	if err != nil {
		return err
	}
	state, err := t.Compare(ctx, series)
	if err != nil {
		return err
	}
	return t.CheckNothingToLose(state)
}
