package tierenv

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/rates"
)

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
