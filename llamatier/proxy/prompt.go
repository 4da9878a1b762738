package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
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
	var in map[string]json.RawMessage // by exact name, as llama-server reads them
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(body, '}')
	if end < 0 || set(in["n"], "1") || set(in["n_cmpl"], "1") || set(in["n_cache_reuse"], "0") || set(in["cache_prompt"], "true") {
		return nil, errNotUnderstood
	}
	tokens, err := h.tokens(r, body, in["prompt"], chat)
	if err != nil {
		return nil, err
	}
	p := &prompt{end: end, Request: llamatier.Request{Tokens: tokens, Slot: -1}}
	p.Private = set(in["kv_store"], "true") || set(in["lora"], "[]")
	if set(in["id_slot"], "-1") {
		if err := json.Unmarshal(in["id_slot"], &p.Slot); err != nil || p.Slot < 0 || p.Slot > math.MaxInt32 {
			return nil, errNotUnderstood
		}
		p.named = true
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
