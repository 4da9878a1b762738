package main

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/spf13/cobra"
)

func newApplyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "apply",
		Short: "Apply the series to the source",
		Long: `Apply the series to the source with git am, one commit per patch. A series that
changed since it was applied is taken off and put on anew. Uncommitted changes,
and commits that no patch holds, are never discarded.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unlock, err := a.lock(cmd.Context())
			if err != nil {
				return err
			}
			defer unlock()
			t, err := a.tree(cmd.Context())
			if err != nil {
				return err
			}
			text, err := a.apply(cmd.Context(), t)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "Ollama %s: %s\n", t.Version, text)
			return nil
		},
	}
}

// apply applies the series to the tree if needed, and describes the change.
func (a *app) apply(ctx context.Context, t *ollamasrc.Tree) (string, error) {
	series, err := a.series(t.Version)
	if err != nil {
		return "", err
	}
	changed, err := t.Apply(ctx, series)
	if err != nil {
		return "", err
	}
	n := ollamasrc.Plural(len(series.Patches), "patch")
	switch {
	case changed:
		return n + " applied", nil
	case len(series.Patches) == 0:
		return "no patches to apply", nil
	default:
		return n + " already applied", nil
	}
}
