package proxy

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"

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
	p := &prompt{end: end, Request: llamatier.Request{Slot: -1}}
	var err error
	if p.Tokens, p.Media, err = h.tokens(r, body, maps.Clone(in), chat); err != nil {
		return nil, err
	}
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

// tokens returns the tokens of a prompt that is a text, a list of tokens, or a chat, up to the
// first image or sound, and whether there is one.
func (h *Handler) tokens(r *http.Request, body []byte, in map[string]json.RawMessage, chat bool) (tokens []int32, media bool, err error) {
	text, media, err := h.text(r, body, in, chat)
	if err != nil && json.Unmarshal(in["prompt"], &tokens) == nil && len(tokens) > 0 {
		return tokens, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	tokens, err = h.engine.Tokenize(r.Context(), text)
	return tokens, media, err
}

// text returns the text of a prompt up to the first image or sound, and whether there is one.
func (h *Handler) text(r *http.Request, body []byte, in map[string]json.RawMessage, chat bool) (text string, media bool, err error) {
	if chat {
		textual, media, err := withoutMedia(in)
		if err != nil {
			return "", false, err
		}
		if media {
			body = textual
		}
		all, err := h.engine.Template(r.Context(), body)
		text, _, _ = strings.Cut(all, cutMark)
		return text, media, err
	}
	if json.Unmarshal(in["prompt"], &text) == nil {
		return text, false, nil
	}
	var p withMedia
	if json.Unmarshal(in["prompt"], &p) != nil || p.Text == "" {
		return "", false, errNotUnderstood
	}
	text, err = h.beforeMedia(r.Context(), p)
	return text, len(p.Data) > 0, err
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
