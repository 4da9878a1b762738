package tierenv

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// Pages become lossy in a model that can have such pages, if they move down at all. Where they do
// not, one line says why.
func TestColdFor(t *testing.T) {
	asked := diskstore.ColdTypes{K: encoding.Q8_0, V: encoding.Q4_0}
	for name, test := range map[string]struct {
		config   Config
		unsuited string
		says     string // "" if pages become lossy
	}{
		"asked":     {Config{Cold: asked, Remote: "/nfs"}, "", ""},
		"no remote": {Config{Cold: asked}, "", "OLLAMA_KV_TIER_REMOTE"},
		"unsuited":  {Config{Cold: asked}, "its cache is q8_0", "its cache is q8_0"},
	} {
		t.Run(name, func(t *testing.T) {
			log, lines := tierenvtest.Logger()
			if cold := test.config.ColdFor(test.unsuited, log); test.says == "" {
				require.Equal(t, asked, cold)
				require.Empty(t, lines.String())
			} else {
				require.Zero(t, cold)
				require.Contains(t, lines.String(), test.says)
			}
		})
	}
	log, lines := tierenvtest.Logger()
	require.Zero(t, Config{Remote: "/nfs"}.ColdFor("its cache is q8_0", log))
	require.Empty(t, lines.String(), "nobody asked for it")
}

func TestColdText(t *testing.T) {
	for _, text := range []string{"q8_0", "q4_0", "int4", "q8_0,q4_0", "int4,q8_0"} {
		k, v, err := encoding.ParseCold(text)
		require.NoError(t, err)
		require.Equal(t, text, ColdText(diskstore.ColdTypes{K: k, V: v}))
	}
	require.Empty(t, ColdText(diskstore.ColdTypes{}))
}
