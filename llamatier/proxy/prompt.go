package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"github.com/kvtier/kvtier/llamatier"
)

// prompt is a request as far as it is understood.
type prompt struct {
	llamatier.Request
	api       api
	in        members // the body, as llama-server reads it
	text      text
	end       int // the offset of the body's last brace
	streaming streaming
	asIs      bool // the request names its slot itself, or llama-server drops the name
}

// readPrompt reads a request without the prompt's tokens.
func readPrompt(r *http.Request, body []byte, a api) (*prompt, error) {
	var in members
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(body, '}')
	if end < 0 || set(in["n"], "1") || set(in["n_cmpl"], "1") || set(in["n_cache_reuse"], "0") || set(in["cache_prompt"], "true") {
		return nil, errNotUnderstood
	}
	p := &prompt{api: a, in: in, text: textOf(r.URL.Path, in), end: end, streaming: readStreaming(in), asIs: a.loose, Request: llamatier.Request{Slot: -1}}
	p.Private = set(in["kv_store"], "true") || set(in["lora"], "[]")
	// An account with a speed alone cannot be corrected, and an answer that llama-server keeps is
	// read again from a byte on.
	p.AtOnce = set(in["response_fields"], "[]") || len(r.Header.Values("X-Conversation-Id")) > 0
	if a.loose && string(bytes.TrimSpace(in["stream"])) != "true" {
		p.AtOnce = true // the answer has what the model gives to tools as it is, with any figures
	}
	if set(in["id_slot"], "-1") && !a.loose {
		if err := json.Unmarshal(in["id_slot"], &p.Slot); err != nil || p.Slot < 0 || p.Slot > math.MaxInt32 {
			return nil, errNotUnderstood
		}
		p.asIs = true
	}
	return p, nil
}

// set reports whether a value is there, is not null, and is not the usual one.
func set(value json.RawMessage, usual string) bool {
	text := string(bytes.TrimSpace(value))
	return text != "" && text != "null" && text != usual
}

// find finds the tokens of a prompt with a body.
func (h *Handler) find(ctx context.Context, p *prompt, body []byte) (err error) {
	in := p.in
	if p.api.convert != nil {
		if in, err = p.api.convert(in); err != nil {
			return err
		}
		body = encode(in)
	}
	p.Tokens, p.Parts, err = h.tokens(ctx, body, in, p.api.chat)
	return err
}

// tokens returns the tokens of a prompt that is a text, a list of tokens, or a chat, up to the
// first image or sound, and all from there on.
func (h *Handler) tokens(ctx context.Context, body []byte, in members, chat bool) (tokens []int32, parts []llamatier.Part, err error) {
	if prompt := bytes.TrimSpace(in["prompt"]); !chat && bytes.HasPrefix(prompt, []byte("[")) {
		if err := json.Unmarshal(prompt, &tokens); err != nil || len(tokens) == 0 {
			return nil, nil, errNotUnderstood
		}
		return tokens, nil, nil
	}
	text, media, err := h.text(ctx, body, in, chat)
	if err == nil && len(media) > 0 {
		text, parts, err = h.parts(ctx, text, media)
	}
	if err != nil {
		return nil, nil, err
	}
	tokens, err = h.engine.Tokenize(ctx, text)
	return tokens, parts, err
}

// text returns the text of a prompt, in which marks stand for images and sounds, and these.
func (h *Handler) text(ctx context.Context, body []byte, in members, chat bool) (text string, media []json.RawMessage, err error) {
	prompt := bytes.TrimSpace(in["prompt"])
	switch {
	case chat:
		textual, media, err := withoutMedia(in)
		if err != nil {
			return "", nil, err
		}
		if len(media) > 0 {
			body = textual
		}
		text, err = h.engine.Template(ctx, body)
		return text, media, err
	case bytes.HasPrefix(prompt, []byte("{")):
		return withMedia(prompt)
	default:
		err = json.Unmarshal(prompt, &text)
		return text, nil, err
	}
}

// pinned returns the body with the number of a slot. Of two members of one name llama-server
// takes the last.
func (p *prompt) pinned(body []byte, slot int) []byte {
	if p.asIs {
		return body
	}
	out := make([]byte, 0, len(body)+32)
	out = append(out, body[:p.end]...)
	out = append(out, `,"id_slot":`+strconv.Itoa(slot)...)
	return append(out, body[p.end:]...)
}
