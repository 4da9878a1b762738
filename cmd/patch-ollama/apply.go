package main

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/spf13/cobra"
)

func newApplyCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Apply the series to the source",
		Long: `Apply the series to the source with git am, one commit per patch. A series that
changed since it was applied is taken off and put on anew. Uncommitted changes,
and commits that no patch holds, are never discarded.

The folders in patches/optional are sets that can be left out: --without paged
gives an Ollama without paged attention. The tree remembers the choice, and the
other verbs follow it, until --without names another or revert ends it;
--without none applies all sets.`,
		RunE: a.locked(func(ctx context.Context, _ []string) error {
			t, err := a.tree(ctx)
			if err != nil {
				return err
			}
			text, err := a.apply(ctx, t)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "Ollama %s: %s\n", t.Version, text)
			return nil
		}),
	}
	a.addWithout(cmd.Flags(), unsetOfTree)
	return cmd
}

// unsetOfTree describes --without that is not given, for verbs on the tree.
const unsetOfTree = "those that the tree was patched without"

// apply applies the series to the tree if needed, and describes the change.
func (a *app) apply(ctx context.Context, t *ollamasrc.Tree) (string, error) {
	series, err := a.series(t)
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

func newRevertCommand(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "revert",
		Short: "Take the patches off the source",
		Long: `Take the source back to the release. Build caches stay, so a later build is
incremental. Uncommitted changes and commits that no patch holds are discarded
only with --force. The next apply puts on all optional sets again.`,
		RunE: a.locked(func(ctx context.Context, _ []string) error {
			t, series, err := a.patched(ctx)
			if err != nil {
				return err
			}
			changed, err := t.Revert(ctx, series, force)
			if err != nil {
				return err
			}
			already := " already"
			if changed {
				already = ""
			}
			fmt.Fprintf(a.stdout, "Ollama %s is as released%s\n", t.Version, already)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "discard uncommitted changes and commits of your own")
	return cmd
}
