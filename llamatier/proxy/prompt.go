package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvtier/kvtier/llamatier"
)

// prompt is a request as far as it is understood.
type prompt struct {
	llamatier.Request
	end   int  // the offset of the body's last brace
	named bool // the request names its slot itself
}

// understand finds the prompt's tokens.
func (h *Handler) understand(r *http.Request, body []byte, chat bool) (*prompt, error) {
	var in struct {
		Prompt   json.RawMessage `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
		Slot     *int            `json:"id_slot"`
		Cache    *bool           `json:"cache_prompt"`
		Store    *bool           `json:"kv_store"`
		Lora     json.RawMessage `json:"lora"`
		N        json.RawMessage `json:"n"`
		Choices  json.RawMessage `json:"n_cmpl"`
		Reuse    json.RawMessage `json:"n_cache_reuse"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(body, '}')
	if end < 0 || set(in.N, "1") || set(in.Choices, "1") || set(in.Reuse, "0") {
		return nil, errNotUnderstood
	}
	if in.Cache != nil && !*in.Cache {
		return nil, fmt.Errorf("cache_prompt is false")
	}
	tokens, err := h.tokens(r, body, in.Prompt, chat)
	if err != nil {
		return nil, err
	}
	p := &prompt{end: end, Request: llamatier.Request{Tokens: tokens, Slot: -1}}
	p.Private = in.Store != nil && !*in.Store || set(in.Lora, "[]")
	if in.Slot != nil && *in.Slot >= 0 {
		p.Slot, p.named = *in.Slot, true
	}
	return p, nil
}

// set reports whether a value is there, is not null, and is not the usual one.
func set(value json.RawMessage, usual string) bool {
	text := string(bytes.TrimSpace(value))
	return text != "" && text != "null" && text != usual
}

// tokens returns the tokens of a prompt that is a text, a list of tokens, or a chat.
func (h *Handler) tokens(r *http.Request, body []byte, raw json.RawMessage, chat bool) ([]int32, error) {
	var text string
	if chat {
		if hasMedia(body) {
			return nil, fmt.Errorf("the chat has images or sound")
		}
		var err error
		if text, err = h.engine.Template(r.Context(), body); err != nil {
			return nil, err
		}
		return h.engine.Tokenize(r.Context(), text)
	}
	if json.Unmarshal(raw, &text) == nil {
		return h.engine.Tokenize(r.Context(), text)
	}
	var tokens []int32
	if json.Unmarshal(raw, &tokens) == nil && len(tokens) > 0 {
		return tokens, nil
	}
	return nil, errNotUnderstood
}

// hasMedia reports whether a chat may have parts that are not text.
func hasMedia(body []byte) bool {
	return bytes.Contains(body, []byte(`"image_url"`)) || bytes.Contains(body, []byte(`"input_audio"`))
}

// pinned returns the body with the number of a slot. Of two members of one name llama-server
// takes the last.
func (p *prompt) pinned(body []byte, slot int) []byte {
	if p.named {
		return body
	}
	out := make([]byte, 0, len(body)+32)
	out = append(out, body[:p.end]...)
	out = append(out, `,"id_slot":`+strconv.Itoa(slot)...)
	return append(out, body[p.end:]...)
}
