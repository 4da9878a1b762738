package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry/show"
)

// listed is a fingerprint in a tier, in the output of ls --json.
type listed struct {
	Model       string            `json:"model"`
	Names       []string          `json:"names"`
	Gone        bool              `json:"gone"` // no model of Ollama has the weights any more
	Fingerprint string            `json:"fingerprint"`
	Identity    map[string]string `json:"identity"`
	Lossy       bool              `json:"lossy"`
	Tier        string            `json:"tier"`
	Pages       int               `json:"pages"`
	Tails       int               `json:"tails"`
	Bytes       int64             `json:"bytes"`
	LastUsed    *time.Time        `json:"last_used"` // null without pages
	Hits        int64             `json:"hits"`
	LastHit     *time.Time        `json:"last_hit"` // null for never
}

func newListCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the models that have pages",
		Long: `List the models that have pages, the most recently used first: one line for each
fingerprint and tier. A fingerprint stands for weights, cache type, engine and
everything else that pages depend on; --json shows all of it. Pages that were made
lossy when they moved down (OLLAMA_KV_TIER_COLD_TYPE) have a line of their own,
with "lossy" behind the cache type. "gone" is behind weights that no model in
Ollama's folder has: of a model that was removed or renewed, or of a GGUF file of
your own. kvtier rm takes their first digits.

HITS counts pages that servers read instead of computing them. A server that is
killed loses the hits of its last seconds. LAST USED is the time at which a page
was last read or written.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			usage, err := at.usage(cmd.Context())
			if err != nil {
				return err
			}
			all, places := listAll(models.names(), usage), at.places()
			if usage.RemoteErr != nil {
				places = at.config.Local
			}
			return cmp.Or(out.show(all, func(w io.Writer) {
				if len(all) == 0 {
					w = out.stderr
				}
				printList(w, all, places)
			}), usage.RemoteErr)
		},
	}
}

// listAll lists the fingerprints of both tiers, the most recently used first.
func listAll(names modelNames, usage diskstore.RootUsage) []listed {
	models := []listed{}
	for _, use := range usage.Local.Fingerprints {
		models = append(models, list(names, use, tier.Local))
	}
	for _, use := range usage.Remote.Fingerprints {
		models = append(models, list(names, use, tier.Remote))
	}
	slices.SortStableFunc(models, func(a, b listed) int {
		return cmp.Or(b.used().Compare(a.used()), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return models
}

func list(names modelNames, use diskstore.FingerprintUsage, in string) listed {
	l := listed{
		Model: names.of(use.Identity), Names: append([]string{}, names.Names[use.Identity[tierenv.KeyWeights]]...),
		Fingerprint: use.Fingerprint.String(), Identity: use.Identity, Tier: in,
		Pages: use.Pages, Tails: use.Tails, Bytes: use.Bytes, Hits: use.Hits.Pages, LastUsed: show.Known(use.LastUsed), LastHit: show.Known(use.Hits.Last),
	}
	l.Gone = in == tier.Local && names.gone(use.Identity) // other servers of a remote tier have other models
	_, l.Lossy = tier.LossyOf(use.Fingerprint, use.Identity)
	return l
}

func (l listed) used() time.Time {
	if l.LastUsed == nil {
		return time.Time{}
	}
	return *l.LastUsed
}

// cache is the type of the K/V, and whether pages are lossy.
func (l listed) cache() string {
	cache := cmp.Or(l.Identity[tierenv.KeyCacheType], "-")
	if l.Lossy {
		cache += " lossy"
	}
	return cache
}

func printList(w io.Writer, models []listed, places string) {
	if len(models) == 0 {
		fmt.Fprintln(w, "no pages are stored in "+places)
		return
	}
	printTable(w, []string{"NAME", "ID", "CACHE", "TIER", "PAGES", "TAILS", "SIZE", "HITS", "LAST USED"}, rowsOf(models, func(m listed) []string {
		if m.Gone {
			m.Model += " gone"
		}
		return []string{
			m.Model, short(m.Fingerprint), m.cache(), m.Tier,
			count(m.Pages), count(m.Tails), humanBytes(m.Bytes), count(m.Hits), when(m.used()),
		}
	}))
}
