package doctor

import (
	"os"
	"regexp"
	"slices"
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

// TestFindingsAreBounded: a check may find one thing for each of thousands of models.
func TestFindingsAreBounded(t *testing.T) {
	saved := spaceChecks
	defer func() { spaceChecks = saved }()
	spaceChecks = []Check{{ID: "many", Severity: Note, judge: func(_ *scene, found func(hit)) {
		for range 100 {
			found(hit{})
		}
	}}}
	found := new(scene).judge().Findings
	found = slices.DeleteFunc(found, func(f Finding) bool { return f.ID != "many" })
	require.Len(t, found, findingsMax)
}
