package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// members are the members of a JSON object, by exact name.
type members = map[string]json.RawMessage

// fromMessages returns the body of the chat that llama-server makes of a body of Anthropic's
// Messages. Where it makes another one, the slot is not stored, and the answer stays the same.
func fromMessages(in members) (members, error) {
	var messages []members
	if err := json.Unmarshal(in["messages"], &messages); err != nil {
		return nil, err
	}
	var chat []members
	if system := in["system"]; set(system, "") {
		chat = append(chat, message("system", encode(systemText(system))))
	}
	for _, m := range messages {
		if isList(m["content"]) {
			chat = append(chat, fromBlocks(stringOf(m["role"]), objects(m["content"]))...)
		} else if len(m["content"]) > 0 || stringOf(m["role"]) != "assistant" {
			chat = append(chat, m)
		}
	}
	out := members{"messages": encode(chat)}
	if isList(in["tools"]) {
		tools := []members{}
		for _, tool := range objects(in["tools"]) {
			function := members{
				"name": encode(stringOf(tool["name"])), "description": encode(stringOf(tool["description"])), "parameters": tool["input_schema"],
			}
			if len(function["parameters"]) == 0 {
				function["parameters"] = json.RawMessage("{}")
			}
			tools = append(tools, members{"type": encode("function"), "function": encode(function)})
		}
		out["tools"] = encode(tools)
	}
	switch stringOf(object(in["tool_choice"])["type"]) {
	case "auto":
		out["tool_choice"] = encode("auto")
	case "any", "tool":
		out["tool_choice"] = encode("required")
	}
	if kwargs := in["chat_template_kwargs"]; len(kwargs) > 0 {
		out["chat_template_kwargs"] = kwargs
	}
	return out, nil
}

// systemText is the text of a system prompt, which is a text or a list of blocks.
func systemText(system json.RawMessage) string {
	if !isList(system) {
		return stable(stringOf(system))
	}
	var text strings.Builder
	for _, block := range objects(system) {
		if stringOf(block["type"]) == "text" {
			text.WriteString(stable(stringOf(block["text"])))
		}
	}
	return text.String()
}

// stable is a text of a system prompt without a stamp that Claude Code sends and that is another one
// in each request; llama-server puts "f" in its place.
func stable(text string) string {
	const header, stamp, digits = "x-anthropic-billing-header:", "cch=", 5
	before, behind, found := strings.Cut(text, stamp)
	if !found || !strings.HasPrefix(text, header) || len(behind) <= digits || behind[digits] != ';' {
		return text
	}
	return before + stamp + strings.Repeat("f", digits) + behind[digits:]
}

// fromBlocks returns the messages of a chat for one message of blocks: the results of tools are
// messages of their own.
func fromBlocks(role string, blocks []members) []members {
	var content, calls, results []members
	var thoughts strings.Builder
	for _, block := range blocks {
		switch stringOf(block["type"]) {
		case "text":
			content = append(content, block)
		case "thinking":
			thoughts.WriteString(stringOf(block["thinking"]))
		case "image":
			content = append(content, imageOf(object(block["source"]))...)
		case "tool_use":
			calls = append(calls, call(block["id"], block["name"], encode(dump(block["input"]))))
		case "tool_result":
			result := message("tool", resultOf(block["content"]))
			result["tool_call_id"] = encode(stringOf(block["tool_use_id"]))
			results = append(results, result)
		}
	}
	if content == nil && calls == nil && thoughts.Len() == 0 {
		return results
	}
	m := message(role, encode(""))
	if content != nil {
		m["content"] = encode(content)
	}
	if calls != nil {
		m["tool_calls"] = encode(calls)
	}
	if thoughts.Len() > 0 {
		m["reasoning_content"] = encode(thoughts.String())
	}
	return append([]members{m}, results...)
}

// imageOf returns the part of a message with an image; none for a source of another kind.
func imageOf(source members) []members {
	switch stringOf(source["type"]) {
	case "base64":
		kind := cmp.Or(stringOf(source["media_type"]), "image/jpeg")
		return []members{image(encode("data:" + kind + ";base64," + stringOf(source["data"])))}
	case "url":
		return []members{image(encode(stringOf(source["url"])))}
	}
	return nil
}

// resultOf returns the content of a message with a tool's result: a text, or parts if it has an image.
func resultOf(content json.RawMessage) json.RawMessage {
	if !isList(content) {
		return encode(stringOf(content))
	}
	var parts []members
	var text strings.Builder
	images := false
	for _, block := range objects(content) {
		switch stringOf(block["type"]) {
		case "text":
			text.WriteString(stringOf(block["text"]))
			parts = append(parts, textPart(encode(stringOf(block["text"]))))
		case "image":
			images = true
			parts = append(parts, imageOf(object(block["source"]))...)
		}
	}
	if images {
		return encode(parts)
	}
	return encode(text.String())
}

// Parts of a chat.

func message(role string, content json.RawMessage) members {
	return members{"role": encode(role), "content": content}
}

func textPart(text json.RawMessage) members {
	return members{"type": encode("text"), "text": text}
}

func image(url json.RawMessage) members {
	return members{"type": encode("image_url"), "image_url": encode(members{"url": url})}
}

func call(id, name, arguments json.RawMessage) members {
	return members{"id": id, "type": encode("function"), "function": encode(members{"name": name, "arguments": arguments})}
}

// Values of another form than the expected one read as the empty value, as in llama-server.

func isList(value json.RawMessage) bool { return bytes.HasPrefix(bytes.TrimSpace(value), []byte("[")) }

func isString(value json.RawMessage) bool {
	return bytes.HasPrefix(bytes.TrimSpace(value), []byte(`"`))
}

func stringOf(value json.RawMessage) (s string) {
	_ = json.Unmarshal(value, &s)
	return s
}

func object(value json.RawMessage) (m members) {
	_ = json.Unmarshal(value, &m)
	return m
}

func objects(value json.RawMessage) (list []members) {
	_ = json.Unmarshal(value, &list)
	return list
}

// encode encodes texts, and parts that were decoded.
func encode(value any) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // escapes are longer
	if enc.Encode(value) != nil {
		return json.RawMessage("null")
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// fromResponses returns the body of the chat that llama-server makes of a body of OpenAI's Responses, or
// errNotUnderstood for one that llama-server refuses. Where it makes another chat, the slot is not stored,
// and the answer stays the same.
func fromResponses(in members) (members, error) {
	tools, hasTools := in["tools"]
	if set(in["previous_response_id"], `""`) || hasTools && !isList(tools) || !isList(in["input"]) && !isString(in["input"]) {
		return nil, errNotUnderstood
	}
	out := members{}
	maps.Copy(out, in)
	for _, name := range []string{"input", "instructions", "tools", "reasoning"} {
		delete(out, name)
	}
	var chat items
	if instructions, ok := in["instructions"]; ok {
		chat = append(chat, message("system", encode(stringOf(instructions))))
	}
	if isString(in["input"]) {
		chat = append(chat, message("user", in["input"]))
	}
	for _, item := range objects(in["input"]) {
		if err := chat.addItem(item); err != nil {
			return nil, err
		}
	}
	out["messages"] = encode(chat)
	var functions []members
	for _, tool := range objects(tools) {
		if stringOf(tool["type"]) == "function" {
			delete(tool, "type")
			functions = append(functions, members{"type": encode("function"), "function": encode(tool)})
		}
	}
	if functions != nil {
		out["tools"] = encode(functions)
	}
	if effort, ok := object(in["reasoning"])["effort"]; ok {
		out["reasoning_effort"] = effort
	}
	return out, nil
}

// items are the messages of a chat, while items of an input are added: members, or what an assistant said.
type items []any

// said is what an assistant says and calls in items one after the other, which are one message.
type said struct {
	Content   []members       `json:"content,omitzero"`
	Reasoning json.RawMessage `json:"reasoning_content,omitzero"`
	Role      string          `json:"role"`
	Calls     []members       `json:"tool_calls,omitzero"`
}

// assistant returns the message of the assistant with which the chat ends, or a new one behind it.
func (c *items) assistant() *said {
	if n := len(*c); n > 0 {
		if last, ok := (*c)[n-1].(*said); ok {
			return last
		}
	}
	next := &said{Role: "assistant"}
	*c = append(*c, next)
	return next
}

// addItem adds an item of an input.
func (c *items) addItem(item members) error {
	role, kind := stringOf(item["role"]), stringOf(item["type"])
	switch {
	case role == "user" || role == "system" || role == "developer":
		content, err := fromParts(item["content"], "input_text", "input_image")
		if err != nil {
			return err
		}
		m := maps.Clone(item)
		delete(m, "type")
		delete(m, "status")
		m["content"] = encode(content)
		*c = append(*c, m)
	case role == "assistant" && kind == "message":
		content, err := fromParts(item["content"], "input_text", "output_text", "refusal")
		if err != nil {
			return err
		}
		m := c.assistant()
		m.Content = append(m.Content, content...)
	case kind == "function_call":
		m := c.assistant()
		m.Calls = append(m.Calls, call(item["call_id"], item["name"], item["arguments"]))
	case kind == "function_call_output":
		return c.addOutput(item)
	case kind == "reasoning" && isList(item["summary"]):
		content := objects(item["content"])
		if len(content) == 0 {
			return errNotUnderstood
		}
		m := c.assistant()
		if m.Reasoning = encode(content[0]["text"]); m.Content == nil {
			m.Content = []members{}
		}
	default:
		return errNotUnderstood
	}
	return nil
}

// addOutput adds the output of a tool.
func (c *items) addOutput(item members) error {
	output := item["output"]
	if isList(output) {
		content, err := fromParts(output, "input_text")
		if err != nil {
			return err
		}
		output = encode(content)
	}
	result := message("tool", output)
	result["tool_call_id"] = item["call_id"]
	*c = append(*c, result)
	return nil
}

// fromParts returns the parts of a message for a content, which is a text or a list of parts of some kinds.
func fromParts(content []byte, kinds ...string) ([]members, error) {
	if isString(content) {
		return []members{textPart(content)}, nil
	}
	out := []members{}
	for _, part := range objects(content) {
		kind := stringOf(part["type"])
		if !slices.Contains(kinds, kind) {
			return nil, errNotUnderstood
		}
		switch kind {
		case "input_image":
			out = append(out, image(part["image_url"]))
		case "refusal":
			out = append(out, members{"type": encode("refusal"), "refusal": part["refusal"]})
		default:
			out = append(out, textPart(part["text"]))
		}
	}
	return out, nil
}

// dump writes what a model has given to a tool as llama-server does, whatever spelling a client has sent:
// without spaces and needless escapes, and with the shortest numbers. No value, or null, is an empty object.
func dump(value json.RawMessage) string {
	if !set(value, "") {
		return "{}"
	}
	in := json.NewDecoder(bytes.NewReader(value))
	in.UseNumber()
	var out strings.Builder
	if dumpNext(&out, in) != nil {
		return "{}"
	}
	return out.String()
}

// dumpNext writes the next value of a decoder.
func dumpNext(out *strings.Builder, in *json.Decoder) error {
	token, err := in.Token()
	if err != nil {
		return err
	}
	begin, nested := token.(json.Delim)
	if !nested {
		out.WriteString(dumpSingle(token))
		return nil
	}
	out.WriteString(begin.String())
	for first := true; in.More(); first = false {
		if !first {
			out.WriteByte(',')
		}
		if begin == '{' {
			name, err := in.Token()
			if err != nil {
				return err
			}
			out.WriteString(dumpSingle(name) + ":")
		}
		if err := dumpNext(out, in); err != nil {
			return err
		}
	}
	end, err := in.Token()
	if err == nil {
		out.WriteString(end.(json.Delim).String())
	}
	return err
}

// dumpSingle is a value that is no list or object.
func dumpSingle(token json.Token) string {
	n, ok := token.(json.Number)
	if !ok {
		return string(encode(token))
	}
	_, signed := strconv.ParseInt(string(n), 10, 64)
	_, unsigned := strconv.ParseUint(string(n), 10, 64)
	v, err := n.Float64()
	if signed == nil || unsigned == nil || err != nil {
		return string(n)
	}
	if size := math.Abs(v); size != 0 && (size < 1e-4 || size >= 1e15) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
