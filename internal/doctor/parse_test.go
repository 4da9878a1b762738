package doctor

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
