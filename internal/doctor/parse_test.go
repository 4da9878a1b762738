package doctor

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// TestKnownVariables: every documented variable is known.
func TestKnownVariables(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	found := regexp.MustCompile("`(OLLAMA_(?:KV|PAGED)_[A-Z_]+)`").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.False(t, unknownName(m[1]), m[1])
	}
	for _, name := range []string{"OLLAMA_KV_TIER", "OLLAMA_KV_TIER_LOCAL_BG", "OLLAMA_PAGED_CHUNK"} {
		require.True(t, unknownName(name), name)
	}
	require.False(t, unknownName("OLLAMA_HOST"))
}

// TestSettingsAgree: variables mean the same here as to a server.
func TestSettingsAgree(t *testing.T) {
	for _, set := range []map[string]string{
		{localVar: "/a"},
		{localVar: ` "/a" `, localGBVar: "0.5", remoteVar: "'/b'", remoteGBVar: "7", "OLLAMA_KV_TIER_RAM_GB": "2", "OLLAMA_KV_TIER_WRITE_GB_PER_DAY": "3"},
		{localVar: "/a", instanceVar: "gpu0"},
		{localVar: "/a", localGBVar: "-1"},
		{localVar: "/a", "OLLAMA_KV_TIER_RAM_GB": "many"},
		{localVar: "/a", instanceVar: "../b"},
		{localVar: "a"},
		{localVar: "/a", remoteVar: "b"},
		{localVar: "/a", tieringVar: "perhaps"},
	} {
		tierenvtest.Set(t, set)
		log, _ := tierenvtest.Logger()
		want, err := tierenv.FromEnvironment(log)
		got := settingsOf(set, "")
		if err != nil {
			require.NotEmpty(t, got.fatal, "%v: %v", set, err)
			continue
		}
		require.Empty(t, got.fatal, set)
		require.Equal(t, []any{want.Local, want.Remote, want.LocalBytes, want.RemoteBytes},
			[]any{got.local, got.remote, got.localBytes, got.remoteBytes}, set)
	}
	require.Equal(t, "/home/x/.ollama/kv-cache", settingsOf(nil, "/home/x").local)
}

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{"/a/b-c.d": "/a/b-c.d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "~": "'~'"} {
		require.Equal(t, want, quote(word))
	}
}

func TestFindingsAreBounded(t *testing.T) {
	require.Len(t, findings(strings.Repeat("y", 100)), findingsMax)
}

// findings are those of a check that finds one for each character.
func findings(text string) []Finding {
	saved := spaceChecks
	defer func() { spaceChecks = saved }()
	spaceChecks = []Check{{ID: "many", Severity: Note, judge: func(*scene) (hits []hit) {
		for range text {
			hits = append(hits, hit{says: "One."})
		}
		return hits
	}}}
	s := new(scene)
	var all []Finding
	for _, f := range s.judge().Findings {
		if f.ID == "many" {
			all = append(all, f)
		}
	}
	return all
}
