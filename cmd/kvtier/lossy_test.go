package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// ls and stat tell lossy pages from exact ones.
func TestLossyPagesAreMarked(t *testing.T) {
	exact := pagefile.Key{7}
	identity := map[string]string{tierenv.KeyCacheType: "f16"}
	usage := diskstore.RootTierUsage{Pages: 12, Fingerprints: []diskstore.FingerprintUsage{
		{Fingerprint: exact, Identity: identity, Pages: 9},
		{Fingerprint: pagefile.ColdFingerprint(exact), Identity: map[string]string{tierenv.KeyCacheType: "f16", tier.KeyLossyOf: exact.String()}, Pages: 2, Tails: 1},
	}}
	var out bytes.Buffer
	var models []listed
	for _, use := range usage.Fingerprints {
		models = append(models, list(modelNames{}, use, tier.Remote))
	}
	printList(&out, models, "")
	require.Regexp(t, `(?m) f16 +remote +9 `, out.String())
	require.Regexp(t, `(?m) f16 lossy +remote +2 +1 `, out.String())

	out.Reset()
	s := newTierStat(tier.Remote, usage)
	require.Equal(t, 3, s.Lossy)
	printStat(&out, []tierStat{s})
	require.Regexp(t, `(?m)^lossy +3$`, out.String())
	out.Reset()
	s.Lossy = 0
	printStat(&out, []tierStat{s})
	require.NotContains(t, out.String(), "lossy")
}
