package tiering

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/rates"
)

// openRates returns the rates that earlier runners on the local root observed: of computing
// with a fingerprint and a placement, and of reading from each directory.
func openRates(c tierenv.Config, fingerprint pagefile.Key, placement string, log *slog.Logger) *rates.Rates {
	known, err := rates.Open(filepath.Join(c.Local, "rates.json"), computing(fingerprint, placement), map[string]string{
		tier.Local:  c.Local,
		tier.Remote: c.Remote,
	})
	if err != nil {
		log.Debug("kv tier: rates of earlier runs are not known", "error", err)
	}
	return known
}

// computing is the name of compute rates in the file. A placement may be long, so the name
// has its digest.
func computing(fingerprint pagefile.Key, placement string) string {
	digest := sha256.Sum256([]byte(placement))
	return fmt.Sprintf("%s %x", fingerprint, digest[:8])
}
