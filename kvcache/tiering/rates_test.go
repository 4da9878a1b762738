package tiering

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/rates"
	"github.com/kvtier/kvtier/kvcache/tiering/tierenv"
	"github.com/kvtier/kvtier/kvcache/tiering/tierenv/tierenvtest"
)

// A directory's speed is known by its path, a model's by its fingerprint.
func TestRatesAreRemembered(t *testing.T) {
	log, lines := tierenvtest.Logger()
	config := tierenv.Config{Local: t.TempDir(), Remote: "/nfs/pages"}
	slow := rates.Chain{Pages: []rates.Page{{Tokens: 1000, Bytes: 1 << 20, Tier: diskstore.TierRemote}}}
	mine := openRates(config, diskstore.Key{1}, log)
	mine.Computed(1000, 500, time.Second)
	mine.Watch(slow, 1).Arrived(time.Minute)
	require.NoError(t, mine.Close())

	again := openRates(config, diskstore.Key{1}, log)
	require.Zero(t, again.Plan(slow))
	config.Remote = "/another"
	require.Equal(t, 1, openRates(config, diskstore.Key{1}, log).Plan(slow))
	require.Empty(t, lines.String())

	require.NoError(t, os.WriteFile(filepath.Join(config.Local, "rates.json"), []byte("?"), 0o600))
	require.Equal(t, 1, openRates(config, diskstore.Key{1}, log).Plan(slow))
}
