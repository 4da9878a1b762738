package proxy

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
)

// sees answers as a llama-server with an encoder of images: a message with an image is one text
// for the template, without a line break before and behind the mark. Tokens are characters; one begins a text that
// has no other.
func sees(t *testing.T) *Handler {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/props":
			_, _ = io.WriteString(w, `{"media_marker":"<media>"}`)
		case "/apply-template":
			prompt, err := rendered(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"prompt": prompt})
		case "/tokenize":
			var in struct {
				Content any
				First   bool `json:"add_special"`
			}
			_ = json.NewDecoder(r.Body).Decode(&in)
			if in.First && in.Content == "" {
				in.Content = "^"
			}
			if in.Content != nil {
				_ = json.NewEncoder(w).Encode(map[string]any{"tokens": []rune(fmt.Sprint(in.Content))})
			}
		}
	})
	return New(e, Ours{}, State{}, slog.New(slog.DiscardHandler))
}

// part is a part of a message.
type part struct {
	Type, Text string
	Image      struct{ URL string }  `json:"image_url"`
	Audio      struct{ Data string } `json:"input_audio"`
}

// rendered is the prompt of a chat.
func rendered(body io.Reader) (string, error) {
	var in struct {
		Messages []struct{ Content json.RawMessage }
		Tools    []int
	}
	if err := json.NewDecoder(body).Decode(&in); err != nil || len(in.Tools) != 1 {
		return "", fmt.Errorf("not a chat: %v", err)
	}
	var prompt strings.Builder
	for _, m := range in.Messages {
		var parts []part
		var text string
		if json.Unmarshal(m.Content, &text) == nil {
			parts = []part{{Type: "text", Text: text}}
		} else if err := json.Unmarshal(m.Content, &parts); err != nil {
			return "", err
		}
		for i, p := range parts {
			switch {
			case p.Type == "image_url" && strings.HasPrefix(p.Image.URL, "data:image/"), p.Type == "input_audio" && p.Audio.Data != "":
				prompt.WriteString("<media>")
			case p.Type != "text":
				return "", fmt.Errorf("unsupported content[].type %q", p.Type)
			case i > 0 && parts[i-1].Type == "text":
				prompt.WriteByte('\n')
			}
			prompt.WriteString(p.Text)
		}
		prompt.WriteByte('|')
	}
	if strings.Contains(prompt.String(), "secret") {
		return "", fmt.Errorf("an image is sent twice")
	}
	return strings.Replace(prompt.String(), "drop<media>", "", 1), nil // as a template may
}

const (
	picture = `{"type":"image_url","image_url":{"url":"data:image/png;base64,secret"}}`
	sound   = `{"type":"input_audio","input_audio":{"data":"secret","format":"wav"}}`
)

// TestTextBeforeMedia: of a prompt with images or sound the text before them is known, and no
// image is sent to ask for a template.
func TestTextBeforeMedia(t *testing.T) {
	h := sees(t)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for _, c := range []struct {
		chat  bool
		body  string
		text  string
		media bool
	}{
		{true, `{"tools":[1],"messages":[{"content":"a"},{"content":[{"type":"text","text":"b"},` + picture + `,{"type":"text","text":"c"}]},{"content":"d"}]}`, "a|b", true},
		{true, `{"tools":[1],"messages":[{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"},` + sound + `]}]}`, "a\nb", true},
		{true, `{"tools":[1],"messages":[{"content":[` + picture + `]}]}`, "^", true},
		{true, `{"tools":[1],"messages":[{"role":"tool","content":[` + sound + `]}]}`, "^", true},
		{true, `{"tools":[1],"messages":[{"content":[{"type":"text","text":"b \"image_url\""}]},{"content":"e"}]}`, `b "image_url"|e|`, false},
		{true, `{"tools":[1],"messages":[{"content":[{"type":"te\u0078t","text":"b"}]},{"content":null}]}`, `b||`, false},
		{false, `{"prompt":{"prompt_string":"one <media> two <media>","multimodal_data":["secret","secret"]}}`, "one ", true},
		{false, `{"prompt":{"prompt_string":"<media>","multimodal_data":["secret"]}}`, "^", true},
		{false, `{"prompt":{"prompt_string":"no image","multimodal_data":[]}}`, "no image", false},
		{false, `{"prompt":{"prompt_string":"no image","multimodal_data":null}}`, "no image", false},
		{false, `{"prompt":{"prompt_string":"a long one","PROMPT_STRING":"b"}}`, "a long one", false},
	} {
		p, err := h.understand(r, []byte(c.body), api{chat: c.chat})
		require.NoError(t, err, c.body)
		require.Equal(t, c.text, string(p.Tokens), c.body)
		require.Equal(t, c.media, p.Parts != nil, c.body)
		require.Equal(t, c.body[:len(c.body)-1]+`,"id_slot":3}`, string(p.pinned([]byte(c.body), 3)), "the request is as it was")
	}
}

// TestMediaThatAreNotUnderstood pass through as they are.
func TestMediaThatAreNotUnderstood(t *testing.T) {
	h := sees(t)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for body, chat := range map[string]bool{
		`{"prompt":{"prompt_string":"no mark","multimodal_data":["secret"]}}`:                                false,
		`{"prompt":{"prompt_string":"<media> <media>","multimodal_data":["secret"]}}`:                        false,
		`{"prompt":{"prompt_string":"<media>","multimodal_data":"secret"}}`:                                  false,
		`{"prompt":{"prompt_string":"<media>","multimodal_data":{"a":"secret"}}}`:                            false,
		`{"prompt":{"multimodal_data":["secret"]}}`:                                                          false,
		`{"tools":[1],"messages":[{"content":[1]}]}`:                                                         true,
		`{"tools":[1],"messages":[{"content":[null]}]}`:                                                      true,
		`{"tools":[1],"messages":[{"content":[{"type":5}]}]}`:                                                true,
		`{"tools":[1],"messages":[{"content":[{"text":"b"}]}]}`:                                              true,
		`{"tools":[1],"messages":[{"content":[{"type":"other"}]}]}`:                                          true,
		`{"tools":[1],"messages":5}`:                                                                         true,
		`{"tools":[1],"messages":5,"prompt":[1,2]}`:                                                          true,
		`{"messages":[{"content":"not the fake's tools"}]}`:                                                  true,
		`{"tools":[1],"messages":[{"content":[{"type":"text","text":"drop"},` + picture + `]}]}`:             true,
		`{"tools":[1],"messages":[{"content":[{"type":"text","text":"the mark <media>"},` + picture + `]}]}`: true,
	} {
		_, err := h.understand(r, []byte(body), api{chat: chat})
		require.Error(t, err, body)
	}
}

// TestPartsOfPrompts: an image is known by its content, whatever form its file comes in, and the text behind
// it by its tokens.
func TestPartsOfPrompts(t *testing.T) {
	h := sees(t)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	parts := func(first, second string) []llamatier.Part {
		p, err := h.understand(r, []byte(`{"prompt":{"prompt_string":"one <media> two <media>","multimodal_data":[`+first+`,`+second+`]}}`), api{})
		require.NoError(t, err)
		return p.Parts
	}
	const cat = "2b77e5ac6c4d7d4d76d5b5a1a2bb0ee1d3a1a3f1"
	data := base64.StdEncoding.EncodeToString([]byte(cat))
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(cat)))
	p := parts(`"`+data+`"`, `"http://elsewhere/cat.png"`)
	require.Equal(t, id, p[0].ID)
	require.Equal(t, []int32(" two "), p[0].Tokens)
	require.Empty(t, p[1].ID, "its content is not known")
	require.Empty(t, p[1].Tokens)
	require.NotEqual(t, p[0].Stands, p[1].Stands)
	require.Equal(t, p, parts(`"`+data+`"`, `"http://elsewhere/cat.png"`))
	for media, want := range map[string]string{
		`{"url":"data:image/png;base64,` + data + `"}`: id,
		`{"data":"` + data + `","format":"wav"}`:       id,
		`{"url":"http://elsewhere/cat.png"}`:           "",
		`{"url":"file:///cat.png"}`:                    "",
		`{"url":"data:image/png,` + data + `"}`:        "",
		`{"url":7}`:                                    "",
		`"not base64!"`:                                "",
		`null`:                                         fmt.Sprintf("%x", sha256.Sum256(nil)),
	} {
		require.Equal(t, want, contentID(json.RawMessage(media)), media)
	}
	for content, named := range map[string]bool{"RIFF\xc3\xa9\x00\x00WEBPVP8 ": false, "RIFF\xc3\xa9\x00\x00WAVEfmt ": true, "RIFF": true} {
		id := contentID(json.RawMessage(`"` + base64.StdEncoding.EncodeToString([]byte(content)) + `"`))
		require.Equal(t, named, id != "", "%q: ffmpeg decodes WebP", content)
	}
}

// TestManyMedia: only the first are asked for.
func TestManyMedia(t *testing.T) {
	const many = 10_000
	h := sees(t)
	_, parts, err := h.parts(t.Context(), strings.Repeat("<media>x", many), make([]json.RawMessage, many))
	require.NoError(t, err)
	require.Len(t, parts, many)
	require.Equal(t, []int32("x"), parts[mediaMax-1].Tokens)
	require.Empty(t, parts[mediaMax].Tokens)
	require.Empty(t, parts[mediaMax].ID)
}
