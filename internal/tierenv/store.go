package tierenv

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/rates"
)

// StoreOptions are the options of a store with these settings, for any model.
func (c Config) StoreOptions() diskstore.Options {
	return diskstore.Options{
		PageTokens:     c.PageTokens,
		Local:          diskstore.TierConfig{Root: c.Local, BudgetBytes: c.LocalBytes},
		Remote:         diskstore.TierConfig{Root: c.Remote, BudgetBytes: c.RemoteBytes},
		RAM:            diskstore.RAMConfig{BudgetBytes: c.RAMBytes},
		WritePerDay:    c.WriteBytesPerDay,
		ReadAheadBytes: c.ReadAheadBytes,
		Compress:       c.Compress,
	}
}

// PrepareRoot makes the local root, and refuses an unsafe one: K/V is the prompt in another
// form.
func (c Config) PrepareRoot() error {
	for _, root := range c.localDirs() {
		if err := os.MkdirAll(root, 0o700); err != nil {
			return fmt.Errorf("make the page store's directory: %w; set OLLAMA_KV_TIER_LOCAL to one this user may write", err)
		}
		if err := dir.CheckRoot(vfs.OS, root); err != nil {
			return err
		}
	}
	return nil
}

// localDirs is Local and, for a server with an id, also Local's parents from the directory
// that servers share on: a user who may write to a parent could replace Local.
func (c Config) localDirs() []string {
	if c.Instance == "" {
		return []string{c.Local}
	}
	instances := filepath.Dir(c.Local)
	return []string{filepath.Dir(instances), instances, c.Local}
}

// OpenRates returns the rates that earlier processes on the local root observed: of computing
// with a fingerprint and a placement, and of reading from each directory. A placement names
// all that decides the cost of a token, and not its rows.
func (c Config) OpenRates(fingerprint pagefile.Key, placement string, log *slog.Logger) *rates.Rates {
	digest := sha256.Sum256([]byte(placement)) // a placement may be long
	computing := fmt.Sprintf("%s %x", fingerprint, digest[:8])
	known, err := rates.Open(filepath.Join(c.Local, "rates.json"), computing, map[string]string{
		tier.Local:  c.Local,
		tier.Remote: c.Remote,
	})
	if err != nil {
		log.Debug("kv tier: rates of earlier runs are not known", "error", err)
	}
	return known
}

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
