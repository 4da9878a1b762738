package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTextBeforeMedia: of a prompt with images or sound the text before them is known, and no
// image is sent to ask for a template.
func TestTextBeforeMedia(t *testing.T) {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/props":
			_, _ = io.WriteString(w, `{"media_marker":"<media>"}`)
		case "/apply-template":
			var in struct {
				Messages []struct{ Content any }
				Tools    []int
			}
			body, _ := io.ReadAll(r.Body)
			if json.Unmarshal(body, &in) != nil || len(in.Tools) != 1 || strings.Contains(string(body), "secret") {
				http.Error(w, "not a chat", http.StatusBadRequest)
				return
			}
			var prompt strings.Builder
			for _, m := range in.Messages {
				parts, ok := m.Content.([]any)
				if !ok {
					parts = []any{map[string]any{"text": m.Content}}
				}
				for _, part := range parts {
					prompt.WriteString(part.(map[string]any)["text"].(string))
				}
				prompt.WriteByte('|')
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"prompt": prompt.String()})
		case "/tokenize":
			var in struct{ Content string }
			_ = json.NewDecoder(r.Body).Decode(&in)
			tokens := []int{}
			for _, c := range in.Content {
				tokens = append(tokens, int(c))
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
		}
	})
	h := New(e, Ours{}, State{}, slog.New(slog.DiscardHandler))
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	image := `{"type":"image_url","image_url":{"url":"data:secret"}}`
	for _, c := range []struct {
		chat  bool
		body  string
		text  string
		media bool
	}{
		{true, `{"tools":[1],"messages":[{"content":"a"},{"content":[{"type":"text","text":"b"},` + image + `,{"type":"text","text":"c"}]},{"content":"d"}]}`, "a|b", true},
		{true, `{"tools":[1],"messages":[{"content":[` + image + `]}]}`, "", true},
		{true, `{"tools":[1],"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"secret"}}]}]}`, "", true},
		{true, `{"tools":[1],"messages":[{"content":[{"type":"text","text":"b \"image_url\""}]},{"content":"e"}]}`, `b "image_url"|e|`, false},
		{false, `{"prompt":{"prompt_string":"one <media> two <media>","multimodal_data":["secret","secret"]}}`, "one ", true},
		{false, `{"prompt":{"prompt_string":"<media>","multimodal_data":["secret"]}}`, "", true},
		{false, `{"prompt":{"prompt_string":"no image","multimodal_data":[]}}`, "no image", false},
	} {
		p, err := h.understand(r, []byte(c.body), c.chat)
		require.NoError(t, err, c.body)
		var text strings.Builder
		for _, tok := range p.Tokens {
			text.WriteRune(tok)
		}
		require.Equal(t, c.text, text.String(), c.body)
		require.Equal(t, c.media, p.Media, c.body)
		require.Equal(t, c.body[:len(c.body)-1]+`,"id_slot":3}`, string(p.pinned([]byte(c.body), 3)), "the request is as it was")
	}
	for body, chat := range map[string]bool{
		`{"prompt":{"prompt_string":"no mark","multimodal_data":["secret"]}}`: false,
		`{"prompt":{"multimodal_data":["secret"]}}`:                           false,
		`{"messages":[{"content":[1]}]}`:                                      true,
		`{"messages":5}`:                                                      true,
		`{"messages":[{"content":"not the fake's tools"}]}`:                   true,
	} {
		_, err := h.understand(r, []byte(body), chat)
		require.Error(t, err, body)
	}
}
