package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/spf13/cobra"
)

func newBuildCommand(a *app) *cobra.Command {
	var allowDirty, noCUDA bool
	var options ollamasrc.BuildOptions
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Fetch, apply and build",
		Long: `Fetch the source and apply the series if that is not done yet, then build the
CPU backends with CMake (and CUDA, when nvcc is found) and the ollama binary. The
result runs in place: bin/ollama finds its backends in lib/ollama beside it. A
second build compiles only changed files.`,
		RunE: a.locked(func(ctx context.Context, _ []string) error {
			if options.Jobs < 1 {
				return cli.Usagef("--jobs %d: at least one compiler must run", options.Jobs)
			}
			options.CUDA = !noCUDA
			steps := progress.New(a.stderr, stepNames)
			defer steps.Close()
			t, err := a.patchedTree(ctx, steps, allowDirty)
			if err != nil {
				return err
			}
			version, err := ollamasrc.Build(ctx, a.lay, t, options, steps)
			if err != nil {
				return err
			}
			steps.Close()
			fmt.Fprintf(a.stdout, "%s %s\n", ollamasrc.Rel(a.lay.Binary()), version)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&allowDirty, "allow-dirty", false, "build uncommitted changes to the source too, and leave the series as it is applied")
	a.addWithout(flags, unsetOfTree)
	flags.BoolVar(&noCUDA, "no-cuda", false, "build no CUDA backend even where nvcc is found")
	cli.Flag(flags, &options.CUDAArchitectures, "cuda-architectures", `a list such as "52;61"`, `GPUs to compile for, as CMake lists them ("52;61"); default: those in this machine`)
	flags.IntVarP(&options.Jobs, "jobs", "j", runtime.NumCPU(), "compilers to run at once")
	return cmd
}

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

// patchedTree fetches and applies as far as needed. Without --version, it uses the release
// of the existing tree.
func (a *app) patchedTree(ctx context.Context, steps *progress.Display, allowDirty bool) (*ollamasrc.Tree, error) {
	if t, err := ollamasrc.OpenTree(ctx, a.lay.Src()); err == nil && !a.versionGiven {
		a.version = t.Version
	}
	t, _, err := a.fetch(ctx, steps, false)
	if err != nil {
		return nil, err
	}
	if allowDirty {
		dirty, err := t.Dirty(ctx)
		if err != nil {
			return nil, err
		}
		if len(dirty) > 0 {
			return t, nil
		}
	}
	step := steps.Step("apply")
	text, err := a.apply(ctx, t)
	step.End(text, err)
	return t, err
}
