package llamae2e

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// tokenize returns the tokens of a text.
func (s *server) tokenize(text string) []int32 {
	s.t.Helper()
	status, body := s.post("/tokenize", map[string]any{"content": text, "parse_special": true})
	require.Equal(s.t, http.StatusOK, status, string(body))
	var out struct{ Tokens []int32 }
	require.NoError(s.t, json.Unmarshal(body, &out))
	require.NotEmpty(s.t, out.Tokens)
	return out.Tokens
}

// TestAThinkingConversationComesBack: the next prompt has another answer than the one that was
// given, as templates make it that leave thoughts out. The reference is a stock server that
// computed the first turn alone.
func TestAThinkingConversationComesBack(t *testing.T) {
	const turn = 1500
	for _, c := range []struct {
		shape testmodel.Shape
		bound float64
	}{
		{shape: testmodel.Shape{Arch: "lfm2"}},
		{shape: testmodel.Shape{Arch: "gemma3", Window: 128}, bound: 0.05},
	} {
		t.Run(c.shape.Arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, c.shape), Args: []string{"-c", "4096", "-np", "1"}}
			stock := start(t, o)
			opening := stock.tokenize("<|im_start|>assistant\n")
			first := slices.Concat(someTokens(1, turn), opening)
			next := slices.Concat(first, someTokens(3, 20), someTokens(4, 100), opening)
			stock.complete(first[:turn], 0)
			want := stock.complete(next, 12)
			stock.Kill()

			o.Root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			a := s.complete(first, 8)
			require.Zero(t, a.Timings.Cached, "both steps count as one request")
			require.Equal(t, len(first), a.Timings.Computed)
			s.Kill()

			s = start(t, o)
			got := s.complete(next, 12)
			require.Equal(t, turn, got.Timings.Cached)
			requireSame(t, want, got, c.bound)
		})
	}
}
