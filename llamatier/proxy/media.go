package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"
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

// cut returns the text before the first image or sound of a prompt, and numbers that stand for
// the rest.
func (h *Handler) cut(ctx context.Context, text string, media []json.RawMessage) (before string, rest []int32, err error) {
	mark, err := h.engine.MediaMark(ctx)
	if err != nil {
		return "", nil, err
	}
	texts := strings.Split(text, mark)
	if len(texts) != len(media)+1 {
		return "", nil, errNotUnderstood // llama-server refuses it
	}
	return texts[0], numbers(media, texts[1:]), nil
}

const (
	mediaTokens = 256 // about as many as an image takes
	tokenBytes  = 4   // about as many as a token has

	// restMax bounds the numbers of one request, about as many as the longest contexts have
	// tokens: a body of 64 MiB has room for millions of images.
	restMax = 1 << 20
)

// stamps is different in each process.
var stamps = maphash.MakeSeed()

// numbers returns numbers that stand for images and sounds, each with a text behind it. Two such
// rests begin with the same numbers as far as they are the same. There are about as many numbers
// as tokens.
func numbers(media []json.RawMessage, behind []string) (rest []int32) {
	stamp := func(b []byte) int32 { return int32(maphash.Bytes(stamps, b)) }
	for i, text := range behind {
		if len(rest) >= restMax {
			break
		}
		rest = append(rest, slices.Repeat([]int32{stamp(media[i])}, mediaTokens)...)
		for token := range slices.Chunk([]byte(text), tokenBytes) {
			rest = append(rest, stamp(token))
		}
	}
	return rest
}
