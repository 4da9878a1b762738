package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

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
			if !changed {
				fmt.Fprintf(a.stdout, "Ollama %s is as released already\n", t.Version)
				return nil
			}
			fmt.Fprintf(a.stdout, "Ollama %s is as released\n", t.Version)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "discard uncommitted changes and commits of your own")
	return cmd
}
