package main

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/spf13/cobra"
)

func newFormatCommand(a *app) *cobra.Command {
	var check, force bool
	cmd := &cobra.Command{
		Use:   "format",
		Short: "Write the patches folder from the commits in the source",
		Long: `Write the patches folder from the commits in the source, one patch per commit
since the release, and remove patches that no commit stands for. Patches on disk
that were never applied are overwritten only with --force.

A commit with a trailer such as "Releases: v0.17.1+" becomes a patch of the folder
of that name, which only these releases get. Each folder is written from the trees
of one release; patches/README.md says which. A commit with a trailer such as
"Set: paged" becomes a patch of an optional set, in patches/optional/paged; these
are written from trees with all sets, and stay as they are in others.`,
		RunE: a.locked(func(ctx context.Context, _ []string) error {
			if check && force {
				return cli.Usagef("--check writes nothing, and --force overwrites patches; give one of them")
			}
			t, series, err := a.patched(ctx)
			if err != nil {
				return err
			}
			var changes []ollamasrc.Change
			if check {
				changes, err = t.Diff(ctx, a.lay, series)
			} else {
				changes, err = t.Format(ctx, a.lay, series, force)
			}
			if err != nil {
				return err
			}
			for _, c := range changes {
				fmt.Fprintln(a.stdout, c)
			}
			if len(changes) == 0 {
				fmt.Fprintf(a.stdout, "%s and the commits agree\n", ollamasrc.Rel(a.patches))
			} else if check {
				return fmt.Errorf("%s and the commits in %s differ; run patch-ollama format to keep the commits, or apply to keep the patches",
					ollamasrc.Rel(a.patches), ollamasrc.Rel(t.Dir))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; fail when something would change")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite patches that are not applied to the source")
	return cmd
}
