package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestAmbiguousDigits: digits that could name two models or pages are refused.
func TestAmbiguousDigits(t *testing.T) {
	noVariables(t)
	root := filepath.Join(t.TempDir(), "root")
	var last string
	for _, weights := range []string{"abcd1", "abcd2"} {
		identity := map[string]string{tierenv.KeyWeights: weights + strings.Repeat("0", 59)}
		last = storeConversation(t, identity, root, "")[0].String()
	}
	t.Setenv(localVar, root)
	for _, verb := range [][]string{{"rm"}, {"export", "--last", "-o", filepath.Join(t.TempDir(), "chat.kvx")}} {
		status, _, said := kvtier(t, append(verb, "--model", "abcd")...)
		require.Equal(t, 1, status, verb)
		require.Contains(t, said, `"abcd" could be abcd10000000 or abcd20000000; give more digits`)
	}
	// A page whose key differs in the last digit only.
	pages, err := filepath.Glob(filepath.Join(root, "v1", "*", last[:2], last+".kvp"))
	require.NoError(t, err)
	require.Len(t, pages, 1)
	data, err := os.ReadFile(pages[0])
	require.NoError(t, err)
	twin := last[:63] + map[bool]string{true: "1", false: "0"}[last[63] == '0']
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(pages[0]), twin+".kvp"), data, 0o600))
	for _, verb := range [][]string{{"inspect", last[:8]}, {"export", "--key", last[:63], "-o", filepath.Join(t.TempDir(), "chat.kvx")}} {
		status, _, said := kvtier(t, verb...)
		require.Equal(t, 1, status, verb)
		require.Contains(t, said, "; give more digits")
	}
	status, _, said := kvtier(t, "inspect", last)
	require.Zero(t, status, said)
	status, _, said = kvtier(t, "rm", "--model", "abcd1")
	require.Zero(t, status, said)
}

// TestLossyPagesHaveALine lists a model that has exact and lossy pages, and picks both by the
// fingerprint of the exact ones.
func TestLossyPagesHaveALine(t *testing.T) {
	ctx := context.Background()
	root := filepath.Join(t.TempDir(), "pages")
	identity := map[string]string{tierenv.KeyWeights: "aabbccddeeff", tierenv.KeyCacheType: "f16"}
	exact := tierenv.Fingerprint(identity)
	cold := pagefile.ColdFingerprint(exact)
	lossy := map[string]string{tier.KeyLossyOf: exact.String()}
	maps.Copy(lossy, identity)
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
