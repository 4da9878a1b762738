package main

import (
	"context"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/spf13/cobra"
)

func newTestCommand(a *app) *cobra.Command {
	var allowDirty bool
	cmd := &cobra.Command{
		Use:   "test [-- ARGUMENTS OF GO TEST]",
		Short: "Run upstream's own tests in the patched source",
		Long: `Run upstream's own tests in the patched source: those of the packages that the
series touches, except the scheduler's, or those that the arguments after -- name.
The source is fetched and the series applied if that is not done yet.`,
		Example: `  patch-ollama test
  patch-ollama test -- -run Rows -v ./ml/backend/ggml`,
		Args: cobra.ArbitraryArgs, // of go test
		RunE: a.locked(func(ctx context.Context, args []string) error {
			steps := progress.New(a.stderr, stepNames)
			t, err := a.patchedTree(ctx, steps, allowDirty)
			steps.Close()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				series, err := a.series(t)
				if err != nil {
					return err
				}
				args = series.TestArgs()
			}
			return ollamasrc.Test(ctx, a.lay, t, args, a.stdout, a.stderr)
		}),
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return cli.Usagef("%w; put arguments of go test behind --, as in patch-ollama test -- -run Rows ./kvcache", err)
	})
	a.addWithout(cmd.Flags(), unsetOfTree)
	cmd.Flags().BoolVar(&allowDirty, "allow-dirty", false, "test uncommitted changes to the source too, and leave the series as it is applied")
	return cmd
}
