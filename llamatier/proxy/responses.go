package proxy

import (
	"maps"
	"slices"
)

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
		chat.add(message("system", encode(stringOf(instructions))))
	}
	if isString(in["input"]) {
		chat.add(message("user", in["input"]))
	}
	for _, item := range objects(in["input"]) {
		if err := chat.addItem(item); err != nil {
			return nil, err
		}
	}
	out["messages"] = encode(chat.messages())
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

// items are the messages of a chat, while items of an input are added.
type items struct {
	chat []members
	said *said // by the assistant in the last message; nil if that is another's
}

// said is what an assistant says and calls in items one after the other, which are one message.
type said struct{ content, calls []members }

func (c *items) add(m members) {
	c.end()
	c.chat = append(c.chat, m)
}

// end ends a message of the assistant.
func (c *items) end() {
	if c.said == nil {
		return
	}
	m := c.chat[len(c.chat)-1]
	if c.said.content != nil {
		m["content"] = encode(c.said.content)
	}
	if c.said.calls != nil {
		m["tool_calls"] = encode(c.said.calls)
	}
	c.said = nil
}

func (c *items) messages() []members {
	c.end()
	return c.chat
}

// assistant returns the message of the assistant with which the chat ends, or a new one behind it.
func (c *items) assistant() members {
	if c.said == nil {
		c.chat = append(c.chat, members{"role": encode("assistant")})
		c.said = &said{}
	}
	return c.chat[len(c.chat)-1]
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
		c.add(m)
	case role == "assistant" && kind == "message":
		content, err := fromParts(item["content"], "input_text", "output_text", "refusal")
		if err != nil {
			return err
		}
		c.assistant()
		c.said.content = append(c.said.content, content...)
	case kind == "function_call":
		c.assistant()
		c.said.calls = append(c.said.calls, call(item["call_id"], item["name"], item["arguments"]))
	case kind == "function_call_output":
		return c.addOutput(item)
	case kind == "reasoning" && isList(item["summary"]):
		content := objects(item["content"])
		if len(content) == 0 {
			return errNotUnderstood
		}
		c.assistant()["reasoning_content"] = content[0]["text"]
		if c.said.content == nil {
			c.said.content = []members{}
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
	c.add(result)
	return nil
}

// fromParts returns the parts of a message for a content, which is a text or a list of parts of some
// kinds.
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
