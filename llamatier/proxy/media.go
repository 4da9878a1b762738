package proxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
)

// cutMark takes the place of images and sound in a chat whose template is asked for.
var cutMark = "kvtier-" + rand.Text()

// withoutMedia returns the body of a chat in which each part that is no text is replaced by
// cutMark, and whether there is one. Images need not be decoded, or fetched, once more.
func withoutMedia(in map[string]json.RawMessage) (body []byte, media bool, err error) {
	var messages []map[string]json.RawMessage
	if err := json.Unmarshal(in["messages"], &messages); err != nil {
		return nil, false, err
	}
	for _, m := range messages {
		content := bytes.TrimSpace(m["content"])
		if len(content) == 0 || content[0] != '[' {
			continue
		}
		var parts []map[string]json.RawMessage
		if err := json.Unmarshal(content, &parts); err != nil {
			return nil, false, err
		}
		for _, part := range parts {
			if string(part["type"]) == `"text"` {
				continue
			}
			media = true
			clear(part)
			part["type"], part["text"] = json.RawMessage(`"text"`), json.RawMessage(`"`+cutMark+`"`)
		}
		if m["content"], err = json.Marshal(parts); err != nil {
			return nil, false, err
		}
	}
	if !media {
		return nil, false, nil
	}
	if in["messages"], err = json.Marshal(messages); err != nil {
		return nil, false, err
	}
	body, err = json.Marshal(in)
	return body, true, err
}

// withMedia is a prompt of text that refers to images or sound.
type withMedia struct {
	Text string            `json:"prompt_string"`
	Data []json.RawMessage `json:"multimodal_data"`
}

// beforeMedia returns the text before the first image or sound of a prompt.
func (h *Handler) beforeMedia(ctx context.Context, p withMedia) (string, error) {
	if len(p.Data) == 0 {
		return p.Text, nil
	}
	mark, err := h.engine.MediaMark(ctx)
	if err != nil {
		return "", err
	}
	text, _, found := strings.Cut(p.Text, mark)
	if !found {
		return "", errNotUnderstood
	}
	return text, nil
}
