package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestLossyPagesHaveALine lists a model that has exact and lossy pages, and picks both by the
// fingerprint of the exact ones.
func TestLossyPagesHaveALine(t *testing.T) {
	ctx := context.Background()
	root := filepath.Join(t.TempDir(), "pages")
	identity := map[string]string{tierenv.KeyWeights: "aabbccddeeff", tierenv.KeyCacheType: "f16"}
	exact := tierenv.Fingerprint(identity)
	cold := pagefile.ColdFingerprint(exact)
	lossy := map[string]string{tier.KeyLossyOf: exact.String()}
	for key, value := range identity {
		lossy[key] = value
	}
	in := dir.New(nil, root, dir.Options{Create: true})
	for fingerprint, identity := range map[pagefile.Key]map[string]string{exact: identity, cold: lossy} {
		require.NoError(t, tier.WriteManifest(ctx, in, fingerprint, &tier.Manifest{
			Schema: pagefile.Schema, Fingerprint: fingerprint.String(), PageTokens: 256, Identity: identity,
		}))
	}
	require.NoError(t, in.Close())
	kvtier := func(args ...string) string {
		status, stdout, stderr := kvtier(t, append(args, "--root", root)...)
		require.Zero(t, status, "%v: %s", args, stderr)
		return stdout
	}
	require.Regexp(t, `f16 +local`, kvtier("ls"))
	require.Regexp(t, `f16 lossy +local`, kvtier("ls"))
	var listed []struct {
		Fingerprint string
		Lossy       bool
	}
	require.NoError(t, json.Unmarshal([]byte(kvtier("ls", "--json")), &listed))
	require.Len(t, listed, 2)
	for _, l := range listed {
		require.Equal(t, l.Fingerprint == cold.String(), l.Lossy)
	}
	kvtier("rm", "--model", exact.String()[:12])
	var left []any
	require.NoError(t, json.Unmarshal([]byte(kvtier("ls", "--json")), &left))
	require.Empty(t, left)
}

// TestLossyPagesAreCounted: stat has a row for them where there are any.
func TestLossyPagesAreCounted(t *testing.T) {
	exact := pagefile.Key{7}
	s := newTierStat(tier.Remote, diskstore.RootTierUsage{Pages: 12, Fingerprints: []diskstore.FingerprintUsage{
		{Fingerprint: exact, Pages: 9},
		{Fingerprint: pagefile.ColdFingerprint(exact), Identity: map[string]string{tier.KeyLossyOf: exact.String()}, Pages: 2, Tails: 1},
	}})
	var out bytes.Buffer
	printStat(&out, []tierStat{s})
	require.Regexp(t, `(?m)^lossy +3$`, out.String())
	out.Reset()
	s.Lossy = 0
	printStat(&out, []tierStat{s})
	require.NotContains(t, out.String(), "lossy")
}
