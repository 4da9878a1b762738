package tierenv

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// reclaimAfter is the time that pages of another engine stay after their last use. Servers
// of different versions may share a root, and a new version may be rolled back.
const reclaimAfter = 24 * time.Hour

// reclaimRemoteAfter is the same time in a remote tier, which keeps pages for longer, and for
// servers that may have another version for weeks.
const reclaimRemoteAfter = 30 * 24 * time.Hour

// Reclaim removes the pages of a model by other versions of the engine that are unused for a
// day, or for 30 days in a remote tier: no fingerprint of this engine asks for them. Reclaim logs the numbers of pages that it
// removed and left. identity is the identity of the store's own pages, and usage a result of its
// Survey. Closing the store ends Reclaim.
func Reclaim(ctx context.Context, store *diskstore.Store, usage diskstore.Usage, identity map[string]string, log *slog.Logger) {
	var kept int
	var keptBytes int64
	reclaimed, err := store.Reclaim(ctx, usage, func(other diskstore.FingerprintUsage) bool {
		if !supersedes(identity, other.Identity) {
			return false
		}
		after := reclaimAfter
		if other.Tier == tier.Remote {
			after = reclaimRemoteAfter
		}
		if other.Unused < after {
			kept += other.Pages + other.Tails
			keptBytes += other.Bytes
			return false
		}
		return true
	})
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, tier.ErrClosed) {
		return
	}
	if err != nil {
		log.Warn("kv tier: could not reclaim pages of another version of the engine", "error", err)
	}
	if reclaimed.Fingerprints > 0 {
		log.Info("kv tier: reclaimed pages that another version of the engine left", "pages", reclaimed.Pages, "bytes", format.HumanBytes(reclaimed.Bytes))
	}
	if kept > 0 {
		log.Info("kv tier: found pages of another version of the engine; they are removed a day after their last use, from the remote directory 30 days after", "pages", kept, "bytes", format.HumanBytes(keptBytes))
	}
}

// supersedes reports whether pages of other belong to the same model on the same kind of
// machine, computed by other engine code.
func supersedes(mine, other map[string]string) bool {
	for _, key := range []string{KeyWeights, KeyAdapters, KeyNumerics, KeyNamespace} {
		if mine[key] != other[key] {
			return false
		}
	}
	return mine[KeyEngine] != other[KeyEngine] || mine[KeySchema] != other[KeySchema]
}
