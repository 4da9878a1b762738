package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"hash/maphash"
	"strings"

	"github.com/kvtier/kvtier/llamatier"
)

// noMedia takes the place of an image or sound in a chat whose template is asked for. For that
// llama-server decodes base64, but no image, so that images are neither decoded nor fetched twice.
var noMedia = json.RawMessage(`{"url":"data:image/png;base64,AAAA","data":"AAAA"}`)

// withoutMedia returns the body of a chat with noMedia in place of images and sounds, and these,
// in order. The body is nil without any.
func withoutMedia(in map[string]json.RawMessage) (body []byte, media []json.RawMessage, err error) {
	var messages []map[string]json.RawMessage
	if err := json.Unmarshal(in["messages"], &messages); err != nil {
		return nil, nil, err
	}
	for _, m := range messages {
		if !bytes.HasPrefix(bytes.TrimSpace(m["content"]), []byte("[")) {
			continue
		}
		content, found, err := withoutMediaParts(m["content"])
		if err != nil {
			return nil, nil, err
		}
		m["content"], media = content, append(media, found...)
	}
	if len(media) == 0 {
		return nil, nil, nil
	}
	changed := make(map[string]any, len(in))
	for name, value := range in {
		changed[name] = value
	}
	changed["messages"] = messages
	body, err = json.Marshal(changed)
	return body, media, err
}

// withoutMediaParts returns the content of a message with noMedia in place of images and sounds,
// and these.
func withoutMediaParts(content json.RawMessage) (changed json.RawMessage, media []json.RawMessage, err error) {
	var parts []map[string]json.RawMessage
	if err := json.Unmarshal(content, &parts); err != nil {
		return nil, nil, err
	}
	for i, part := range parts {
		var kind string
		if err := json.Unmarshal(part["type"], &kind); err != nil {
			return nil, nil, err
		}
		if kind != "text" {
			media = append(media, part[kind])
			parts[i] = map[string]json.RawMessage{"type": part["type"], kind: noMedia}
		}
	}
	changed, err = json.Marshal(parts)
	return changed, media, err
}

// withMedia reads a prompt that is a text with marks, and the images and sounds for which the
// marks stand.
func withMedia(prompt json.RawMessage) (text string, media []json.RawMessage, err error) {
	var in map[string]json.RawMessage // by exact name, as llama-server reads them
	if err := json.Unmarshal(prompt, &in); err != nil {
		return "", nil, err
	}
	if err := json.Unmarshal(in["prompt_string"], &text); err != nil {
		return "", nil, err
	}
	if set(in["multimodal_data"], "[]") {
		err = json.Unmarshal(in["multimodal_data"], &media)
	}
	return text, media, err
}

// parts returns the text before the first image or sound of a prompt, and these, each with the text behind
// it.
func (h *Handler) parts(ctx context.Context, text string, media []json.RawMessage) (before string, parts []llamatier.Part, err error) {
	mark, err := h.engine.MediaMark(ctx)
	if err != nil {
		return "", nil, err
	}
	texts := strings.Split(text, mark)
	if len(texts) != len(media)+1 {
		return "", nil, errNotUnderstood // llama-server refuses it
	}
	for i, m := range media {
		part := llamatier.Part{Stands: int32(maphash.Bytes(stamps, m))}
		if i < mediaMax {
			part.ID = contentID(m)
		}
		if i < mediaMax && texts[i+1] != "" {
			if part.Tokens, err = h.engine.TokenizeMore(ctx, texts[i+1]); err != nil {
				return "", nil, err
			}
		}
		parts = append(parts, part)
	}
	return texts[0], parts, nil
}

// mediaMax bounds the images and sounds of one request that are known: a body of 64 MiB has room for
// millions.
const mediaMax = 256

// stamps is different in each process.
var stamps = maphash.MakeSeed()

// contentID returns the SHA-256 of an image or a sound, in hex, as llama-server names its content. It is ""
// for one that llama-server fetches.
func contentID(media json.RawMessage) string {
	var data string
	if json.Unmarshal(media, &data) != nil {
		var in struct{ URL, Data string }
		if json.Unmarshal(media, &in) != nil {
			return ""
		}
		if data = in.Data; data == "" {
			head, rest, inline := strings.Cut(in.URL, ";base64,")
			if !inline || !strings.HasPrefix(head, "data:") {
				return ""
			}
			data = rest
		}
	}
	content, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
