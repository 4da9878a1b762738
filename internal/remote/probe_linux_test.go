package remote

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/tier/sealed"
	"github.com/kvtier/kvtier/internal/engines"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestProbe: a good engine is good, and stays as it was; another key, other credentials and another bucket are told.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	for name, digit := range map[string]string{"right": "1", "wrong": "2"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte(digit), 64), 0o600))
	}
	for name, address := range addresses(t) {
		t.Run(name, func(t *testing.T) {
			c := tierenv.Config{Address: strings.Replace(address, "PREFIX", "probe", 1), KeyFile: filepath.Join(dir, "right")}
			h, err := Probe(t.Context(), c, nil)
			require.NoError(t, err)
			require.Positive(t, h.RoundTrip)
			require.False(t, h.Unconditional)

			shared, err := Open(t.Context(), c, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			defer func() { require.NoError(t, shared.Close()) }()
			fingerprints, shards, err := shared.Survey(t.Context())
			require.NoError(t, err)
			require.Empty(t, fingerprints)
			require.Empty(t, shards)
			_, err = shared.Account(t.Context(), func([]byte, string) ([]byte, error) { return []byte("{}"), nil })
			require.NoError(t, err)

			_, err = Probe(t.Context(), c, nil)
			require.NoError(t, err)
			c.KeyFile = filepath.Join(dir, "wrong")
			_, err = Probe(t.Context(), c, nil)
			require.ErrorIs(t, err, sealed.ErrOtherKey)
			c.KeyFile = filepath.Join(dir, "none")
			_, err = Probe(t.Context(), c, nil)
			require.ErrorIs(t, err, os.ErrNotExist)
			_, err = Probe(t.Context(), tierenv.Config{Address: c.Address + "&plain=1"}, nil)
			require.ErrorIs(t, err, ledger.ErrSealed)
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = Probe(over, tierenv.Config{Address: c.Address + "&plain=1"}, nil)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

// TestProbeWithVariables: the credentials are those of the variables, and no file's.
func TestProbeWithVariables(t *testing.T) {
	c := tierenv.Config{Address: strings.Replace(addresses(t)["s3"], "PREFIX", "probe", 1) + "&plain=1"}
	file := filepath.Join(t.TempDir(), "credentials")
	good := "[default]\naws_access_key_id=" + engines.WeedAccess + "\naws_secret_access_key=" + engines.WeedSecret + "\n"
	require.NoError(t, os.WriteFile(file, []byte(good), 0o600))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	_, err := Probe(t.Context(), c, nil)
	require.NoError(t, err)
	_, err = Probe(t.Context(), c, map[string]string{"AWS_SHARED_CREDENTIALS_FILE": file})
	require.ErrorContains(t, err, "there are no credentials")
	_, err = Probe(t.Context(), c, map[string]string{"AWS_ACCESS_KEY_ID": engines.WeedAccess, "AWS_SECRET_ACCESS_KEY": "wrong"})
	require.ErrorContains(t, err, "the store refuses the credentials")
	own := map[string]string{"AWS_ACCESS_KEY_ID": engines.WeedAccess, "AWS_SECRET_ACCESS_KEY": engines.WeedSecret}
	_, err = Probe(t.Context(), c, own)
	require.NoError(t, err)
	c.Address = strings.Replace(c.Address, "s3://pages", "s3://none", 1)
	_, err = Probe(t.Context(), c, own)
	require.ErrorContains(t, err, "the bucket does not exist, make it or name another")
}
