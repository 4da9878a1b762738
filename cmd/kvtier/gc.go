package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// collected is the output of gc --json and rm --json.
type collected struct {
	DryRun bool            `json:"dry_run"`
	Tiers  []collectedTier `json:"tiers"`
}

type collectedTier struct {
	Tier string `json:"tier"`
	diskstore.GCTier
	Quarantined int    `json:"quarantined"` // files removed from quarantine
	Error       string `json:"error,omitempty"`
}

type collectFlags struct {
	dryRun    bool
	olderThan string
	model     string   // --model
	models    []string // arguments
}

func newGCCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	var f collectFlags
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove pages that are old, or over the budget",
		Long: `Remove pages.

With --older-than, pages are removed that were last used longer ago, from both tiers.
kvtier rm removes those of a model.

Without it, each tier is brought within its budget, as servers do by themselves.
Pages that leave the local tier move to the remote one: first those whose weights
Ollama has deleted, then those that OLLAMA_KV_TIER_EVICTION picks, and the end of
a conversation before its beginning. The budgets are those of the server's
variables, or of --local-gb and --remote-gb.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.olderThan == "" && !at.budgets[tier.Local] && !at.budgets[tier.Remote] {
				return cli.Usagef("no budget is known here, and a server may have another than the default; set %s as the server has it, or give --local-gb or --older-than", localGBVar)
			}
			return f.run(cmd.Context(), out, at, models)
		},
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, dryRunUsage)
	cli.Flag(cmd.Flags(), &f.olderThan, "older-than", "an age such as 30min, 12h, 30d or 2w", "remove pages that were last used longer ago, such as 30min, 12h, 30d or 2w")
	return cmd
}

func newRemoveCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	var f collectFlags
	cmd := &cobra.Command{
		Use:   "rm MODEL...",
		Short: "Remove all pages of models, from both tiers",
		Long: `Remove all pages of models, from both tiers and from quarantine. Files in quarantine
that are too damaged to say whose they are go, too.

MODEL is a name as ollama rm takes it: qwen3 is qwen3:latest. The first digits of
the weights' digest, or of an ID that kvtier ls shows, stand for a model that
Ollama no longer has. Models of other names with the same weights have the same
pages, and lose them. The model itself stays.

A model that is loaded may store its conversations again, at the latest when it is
unloaded: run ollama stop MODEL, and wait ten seconds, before.`,
		Example: `  kvtier rm qwen3
  kvtier rm qwen3:4b gemma3 --dry-run`,
		Args: cobra.ArbitraryArgs, // RunE looks
		RunE: func(cmd *cobra.Command, args []string) error {
			f.models = args
			if f.model == "" && len(args) == 0 || slices.Contains(args, "") {
				return cli.Usagef("say which model: its name, or the first digits of its weights' digest or of an ID")
			}
			return f.run(cmd.Context(), out, at, models)
		},
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, dryRunUsage)
	cli.Flag(cmd.Flags(), &f.model, "model", giveModel, modelUsage)
	return cmd
}

const dryRunUsage = "show what would go, and remove nothing"

func (f *collectFlags) run(ctx context.Context, out *output, at *storage, models *modelStore) error {
	done := collected{DryRun: f.dryRun}
	opt := diskstore.GCOptions{DryRun: f.dryRun}
	if f.olderThan != "" {
		var err error
		if opt.OlderThan, err = age(f.olderThan); err != nil {
			return cli.Usagef("--older-than: %w", err)
		}
	}
	if f.model != "" {
		f.models = append(f.models, f.model)
	}
	return at.with(ctx, func(root *roots) error {
		chosen := make(picked)
		names := models.names()
		for _, model := range f.models {
			p, err := pick(ctx, root, names, model)
			if errors.Is(err, errNothing) {
				err = promptsOf(ctx, at.config.Local, names, model, err)
			}
			if err != nil {
				return err
			}
			maps.Copy(chosen, p)
		}
		if len(f.models) > 0 {
			opt.Fingerprints = func(use diskstore.FingerprintUsage) bool { return chosen.has(use.Fingerprint) }
		}
		var promptsErr error
		if len(f.models) > 0 && !f.dryRun { // pages that cannot be removed keep none
			promptsErr = forgetPrompts(ctx, at.config.Local, names, chosen, f.models)
		}
		report, err := root.GC(ctx, opt)
		if err != nil {
			return errors.Join(err, promptsErr)
		}
		done.Tiers = []collectedTier{{Tier: tier.Local, GCTier: report.Local}}
		if at.config.Remote != "" {
			done.Tiers = append(done.Tiers, collectedTier{Tier: tier.Remote, GCTier: report.Remote})
			if report.RemoteErr != nil {
				done.Tiers[1].Error = report.RemoteErr.Error()
			}
		}
		if len(f.models) > 0 { // files in quarantine go, too
			drops, err := root.DropQuarantined(ctx, chosen.has, f.dryRun)
			for i, drop := range drops {
				done.Tiers[i].Quarantined = drop.Files
				done.Tiers[i].Bytes += drop.Bytes
			}
			if errors.Is(err, diskstore.ErrNoDirectory) { // which is no failure of this verb
				fmt.Fprintln(out.stderr, err)
			} else if err != nil && report.RemoteErr == nil {
				return errors.Join(err, promptsErr)
			}
		}
		return errors.Join(out.show(done, done.print), report.RemoteErr, promptsErr)
	})
}

// promptsOf returns nil for a model of which there are prompts, which kvtier why shows, though no
// pages, and else nothing, the error of a model without pages.
func promptsOf(ctx context.Context, root string, names modelNames, model string, nothing error) error {
	has := false
	err := collect.Forget(ctx, root, func(m telemetry.Model) bool {
		has = has || isModel(names, m, model)
		return false
	})
	if has {
		return nil // a file of another model that cannot be read stays
	}
	return errors.Join(nothing, err)
}

// forgetPrompts removes the prompts of models whose pages are to be removed, and files that nobody knows the
// model of.
func forgetPrompts(ctx context.Context, root string, names modelNames, pages picked, models []string) error {
	return collect.Forget(ctx, root, func(m telemetry.Model) bool {
		fingerprint, err := pagefile.ParseKey(m.Fingerprint)
		return m == telemetry.Model{} || err == nil && pages.has(fingerprint) ||
			slices.ContainsFunc(models, func(model string) bool { return isModel(names, m, model) })
	})
}

func isModel(names modelNames, m telemetry.Model, model string) bool {
	return names.Has(m.Weights, model) || begins(model, m.Weights) || begins(model, m.Fingerprint)
}

func (out collected) print(w io.Writer) {
	went := "WENT"
	if out.DryRun {
		went = "WOULD GO"
	}
	printTable(w, []string{"TIER", "PAGES", "TAILS", "QUARANTINED", went, "TO REMOTE"}, rowsOf(out.Tiers, func(t collectedTier) []string {
		return []string{t.Tier, count(t.Pages), count(t.Tails), count(t.Quarantined), humanBytes(t.Bytes), count(t.Demoted)}
	}))
}
