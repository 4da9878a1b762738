package tiering

import (
	"log/slog"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/rates"
	"github.com/kvtier/kvtier/kvcache/tiering/tierenv"
)

// openRates returns what earlier runners on the local root have learned: what computing with
// a fingerprint costs, and reading from each directory.
func openRates(c tierenv.Config, fingerprint diskstore.Key, log *slog.Logger) *rates.Rates {
	known, err := rates.Open(filepath.Join(c.Local, "rates.json"), fingerprint.String(), map[string]string{
		diskstore.TierLocal:  c.Local,
		diskstore.TierRemote: c.Remote,
	})
	if err != nil {
		log.Debug("kv tier: rates of earlier runs are not known", "error", err)
	}
	return known
}
