package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/semaphore"

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
	account   bool // the answer has its account for our sake alone
	asIs      bool // the request names its slot itself, or llama-server drops the name
	answers   int  // that the request asks for
}

// readPrompt reads a request without the prompt's tokens.
func readPrompt(r *http.Request, body []byte, a api) (*prompt, error) {
	var in members
	if bytes.Count(body, []byte("{")) > objectsMax || bytes.Count(body, []byte(",")) > valuesMax {
		return nil, errManyValues
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(body, '}')
	if end < 0 || set(in["n_cache_reuse"], "0") || set(in["cache_prompt"], "true") {
		return nil, errNotUnderstood
	}
	p := &prompt{api: a, in: in, text: textOf(r.URL.Path, in), end: end, streaming: readStreaming(in), asIs: a.loose, Request: llamatier.Request{Slot: -1, Loose: a.loose}}
	p.account = hidesAccount(in, a)
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
	return p, p.readAnswers()
}

// set reports whether a value is there, is not null, and is not the usual one.
func set(value json.RawMessage, usual string) bool {
	text := string(bytes.TrimSpace(value))
	return text != "" && text != "null" && text != usual
}

// hidesAccount reports whether a request names the members of its answer, and its account is not one of them. A
// stream is left as it is.
func hidesAccount(in members, a api) bool {
	var named []*string
	return !a.chat && a.named == "" && !set(in["stream"], "false") &&
		json.Unmarshal(in["response_fields"], &named) == nil && len(named) > 0 &&
		!slices.ContainsFunc(named, func(name *string) bool { return name == nil || *name == "timings" })
}

// find finds the tokens of a prompt with a body.
func (h *Handler) find(ctx context.Context, p *prompt, body []byte) (err error) {
	in := p.in
	if p.api.infill {
		p.Tokens, err = h.infill(ctx, in, p.Private, p.Tenant)
		return err
	}
	if p.api.convert != nil {
		if in, err = p.api.convert(in); err != nil {
			return err
		}
		body = encode(in)
	}
	p.Tokens, p.Parts, err = h.tokens(ctx, body, in, p.api.chat, p.Private, p.Tenant)
	return err
}

// tokens returns the tokens of a prompt that is a text, a list of tokens, or a chat, up to the
// first image or sound, and all from there on. Nothing is kept of a private one.
func (h *Handler) tokens(ctx context.Context, body []byte, in members, chat, private bool, of llamatier.Tenant) (tokens []int32, parts []llamatier.Part, err error) {
	prompt := single(in["prompt"])
	if !chat && isList(prompt) {
		tokens, err := h.mixed(ctx, prompt)
		return tokens, nil, err
	}
	text, media, err := h.text(ctx, body, in, prompt, chat)
	if err == nil && len(media) > 0 {
		text, parts, err = h.parts(ctx, text, media)
	}
	if err != nil {
		return nil, nil, err
	}
	if private {
		tokens, err = h.engine.Tokenize(ctx, text, true, true)
	} else {
		tokens, err = h.texts.tokenize(ctx, text, of)
	}
	return tokens, parts, err
}

// single returns the prompt of a list of one prompt. A list with a token is itself a prompt.
func single(prompt json.RawMessage) json.RawMessage {
	prompt = bytes.TrimSpace(prompt)
	var list []json.RawMessage
	if isList(prompt) && json.Unmarshal(prompt, &list) == nil && len(list) == 1 && bytes.ContainsAny(list[0][:1], `"[{`) {
		return list[0]
	}
	return prompt
}

// mixed returns the tokens of a prompt that is a list of tokens, with or without texts among them.
func (h *Handler) mixed(ctx context.Context, prompt json.RawMessage) (tokens []int32, err error) {
	if tokens := numbers(prompt); tokens != nil {
		return tokens, nil
	}
	var pieces []json.RawMessage
	if err := json.Unmarshal(prompt, &pieces); err != nil {
		return nil, err
	}
	several := true // prompts, of which each is a text
	for _, piece := range pieces {
		var token int32
		switch {
		case isString(piece):
		case string(piece) != "null" && json.Unmarshal(piece, &token) == nil:
			several = false
		default:
			return nil, errNotUnderstood
		}
	}
	if several {
		return nil, errNotUnderstood
	}
	return h.engine.Tokenize(ctx, prompt, true, true)
}

// numbers returns the numbers of a list, which package json reads much slower; nil if anything else is in it.
func numbers(list json.RawMessage) (numbers []int32) {
	for text := range bytes.SplitSeq(bytes.TrimSuffix(bytes.TrimPrefix(list, []byte("[")), []byte("]")), []byte(",")) {
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 32)
		if err != nil {
			return nil
		}
		numbers = append(numbers, int32(n))
	}
	return numbers
}

// text returns the text of a prompt, in which marks stand for images and sounds, and these.
func (h *Handler) text(ctx context.Context, body []byte, in members, prompt json.RawMessage, chat bool) (text string, media []json.RawMessage, err error) {
	switch {
	case chat:
		if body, media, err = withoutMedia(in, body); err == nil {
			text, err = h.engine.Template(ctx, body)
		}
		return text, media, err
	case bytes.HasPrefix(prompt, []byte("{")):
		return withMedia(prompt)
	default:
		err = json.Unmarshal(prompt, &text)
		return text, nil, err
	}
}

// pinned returns the body with the number of a slot, and all that its answer must have. Of two members of one
// name llama-server takes the last.
func (p *prompt) pinned(body []byte, slot int) []byte {
	more := ""
	if !p.asIs {
		more = `,"id_slot":` + strconv.Itoa(slot)
	}
	if p.account {
		list, _ := bytes.CutSuffix(bytes.TrimSpace(p.in["response_fields"]), []byte("]"))
		more += `,"response_fields":` + string(list) + `,"timings"]`
	}
	return slices.Concat(body[:p.end], []byte(more), body[p.end:])
}

const (
	// bodyMax bounds a request that is read to be understood, in bytes.
	bodyMax = 64 << 20
	// bodiesMax bounds all such requests together. Understanding takes a few times the memory of the body.
	bodiesMax = 128 << 20
	// objectsMax and valuesMax bound the objects and the values of such a request, by their first and last bytes,
	// also in texts. In a body they take two bytes each, in memory some hundred and some ten.
	objectsMax, valuesMax = 1 << 17, 1 << 20
	// bodyStep is taken at a time for a body whose length is not known.
	bodyStep = 1 << 20
)

// bodies bounds the requests that are read to be understood, in bytes.
type bodies struct {
	all *semaphore.Weighted
	one int64
}

// read reads a request's body, unless there are no bytes for it; then the body is nil. The
// request still has all of its body. The caller calls done when the body is not needed any more.
func (b bodies) read(r *http.Request) (body []byte, done func(), err error) {
	taken := int64(0)
	done = func() { b.all.Release(taken) }
	step := int64(bodyStep)
	switch {
	case r.ContentLength > b.one:
		return nil, done, nil
	case r.ContentLength >= 0:
		step = r.ContentLength + 1 // one byte more, to find the end
	}
	var read bytes.Buffer
	rest := r.Body
	for {
		if taken+step > b.one+1 || !b.all.TryAcquire(step) {
			r.Body = joined{io.MultiReader(&read, rest), rest}
			return nil, done, nil
		}
		taken += step
		switch _, err := io.CopyN(&read, rest, step); {
		case errors.Is(err, io.EOF):
			body = read.Bytes()
			r.Body = joined{bytes.NewReader(body), rest}
			return body, done, nil
		case err != nil:
			return nil, done, err
		}
	}
}

// joined is a body that was read in part.
type joined struct {
	io.Reader
	io.Closer
}

// noMedia takes the place of an image or sound in a chat whose template is asked for. For that
// llama-server decodes base64, but no image, so that images are neither decoded nor fetched twice.
var noMedia = json.RawMessage(`{"url":"data:image/png;base64,AAAA","data":"AAAA"}`)

// withoutMedia returns the body of a chat with noMedia in place of images and sounds, and these,
// in order. Without any it is the body as it was.
func withoutMedia(in members, body []byte) (textual []byte, media []json.RawMessage, err error) {
	var messages []members
	if err := json.Unmarshal(in["messages"], &messages); err != nil {
		return nil, nil, err
	}
	for _, m := range messages {
		if !isList(m["content"]) {
			continue
		}
		content, found, err := withoutMediaParts(m["content"])
		if err != nil {
			return nil, nil, err
		}
		m["content"], media = content, append(media, found...)
	}
	if len(media) == 0 {
		return body, nil, nil
	}
	changed := maps.Clone(in)
	changed["messages"] = encode(messages)
	return encode(changed), media, nil
}

// withoutMediaParts returns the content of a message with noMedia in place of images and sounds, and these.
func withoutMediaParts(content json.RawMessage) (changed json.RawMessage, media []json.RawMessage, err error) {
	var parts []members
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
			parts[i] = members{"type": part["type"], kind: noMedia}
		}
	}
	return encode(parts), media, nil
}

// withMedia reads a prompt that is a text with marks, and the images and sounds for which the marks stand.
func withMedia(prompt json.RawMessage) (text string, media []json.RawMessage, err error) {
	var in members
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
			if part.Tokens, err = h.engine.Tokenize(ctx, texts[i+1], false, true); err != nil {
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
// for one that llama-server fetches, and for one that another program decodes, ffmpeg: its next version may
// make other pixels of it.
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
	if err != nil || isWebP(content) {
		return ""
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func isWebP(content []byte) bool {
	return len(content) >= 12 && string(content[:4]) == "RIFF" && string(content[8:12]) == "WEBP"
}

// Infill is all that decides, beside a request to /infill, which prompt llama-server makes of it.
type Infill struct {
	Tokens         map[string]int32 // identity.Model.Infill
	Batch, Predict int              // --batch-size, --predict
	Context        int              // tokens that a slot has room for
	SuffixFirst    bool             // --spm-infill
}

// infill returns the prompt that llama-server makes of a text with a gap, in format_prompt_infill: the end of
// other files, that of the text before the gap, and the beginning of the text behind it, as far as each has
// room. The prompt of the request stands before the gap, too. Nothing is kept of a private one.
func (h *Handler) infill(ctx context.Context, in members, private bool, of llamatier.Tenant) ([]int32, error) {
	i := h.Infill
	begins, hasBegin := i.Tokens["pre"]
	goesOn, hasEnd := i.Tokens["suf"]
	gap, hasGap := i.Tokens["mid"]
	list, known := i.files(in["input_extra"])
	if !hasBegin || !hasEnd || !hasGap || !known {
		return nil, errNotUnderstood // llama-server refuses it
	}
	files, err1 := h.texts.list(ctx, list, private, of)
	before, err2 := h.engine.Tokenize(ctx, in["input_prefix"], false, false)
	behind, err3 := h.engine.Tokenize(ctx, in["input_suffix"], false, false)
	prompt, err4 := h.engine.Tokenize(ctx, stringOf(in["prompt"]), false, true)
	first, err5 := h.engine.Tokenize(ctx, "", true, true)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	files = files[max(0, len(files)-max(0, i.Context-i.Batch-2*i.Predict)):]
	before = before[max(0, len(before)-max(0, 3*(i.Batch/4))):]
	behind = behind[:min(len(behind), max(0, i.Batch/4-2-len(prompt)))]
	before, behind = slices.Concat([]int32{begins}, before, prompt), slices.Concat([]int32{goesOn}, behind)
	if i.SuffixFirst {
		before, behind = behind, before
	}
	return slices.Concat(files, first[:min(1, len(first))], before, behind, []int32{gap}), nil
}

// files returns other files of a request as a list of texts and tokens, and reports whether llama-server takes
// them.
func (i Infill) files(extra json.RawMessage) (list []any, known bool) {
	list = []any{}
	if repository, ok := i.Tokens["rep"]; ok {
		list = append(list, repository, "myproject\n")
	}
	separator, separates := i.Tokens["sep"]
	for _, file := range objects(extra) {
		name, named := file["filename"]
		if !named {
			name = encode("tmp")
		}
		if !isString(file["text"]) || !isString(name) {
			return nil, false
		}
		if separates {
			list = append(list, separator, stringOf(name)+"\n", file["text"])
		} else {
			list = append(list, "\n\n--- snippet ---\n\n", file["text"])
		}
	}
	if separates {
		list = append(list, separator, "filename\n")
	}
	return list, len(extra) == 0 || isList(extra)
}
