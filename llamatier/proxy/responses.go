package proxy

import "maps"

// fromResponses returns the body of the chat that llama-server makes of a body of OpenAI's Responses.
// Where it makes another one, the slot is not stored, and the answer stays the same.
func fromResponses(in members) (members, error) {
	out := members{}
	maps.Copy(out, in)
	for _, name := range []string{"input", "instructions", "tools", "reasoning"} {
		delete(out, name)
	}
	var chat []members
	if instructions, ok := in["instructions"]; ok {
		chat = append(chat, message("system", encode(stringOf(instructions))))
	}
	if isString(in["input"]) {
		chat = append(chat, message("user", in["input"]))
	}
	for _, item := range objects(in["input"]) {
		var err error
		if chat, err = appendItem(chat, item); err != nil {
			return nil, err
		}
	}
	out["messages"] = encode(chat)
	var tools []members
	for _, tool := range objects(in["tools"]) {
		if stringOf(tool["type"]) == "function" {
			delete(tool, "type")
			tools = append(tools, members{"type": encode("function"), "function": encode(tool)})
		}
	}
	if tools != nil {
		out["tools"] = encode(tools)
	}
	if effort, ok := object(in["reasoning"])["effort"]; ok {
		out["reasoning_effort"] = effort
	}
	return out, nil
}

// appendItem appends an item of an input to a chat. What an assistant says, thinks and calls
// in items one after the other is one message.
func appendItem(chat []members, item members) ([]members, error) {
	role, kind := stringOf(item["role"]), stringOf(item["type"])
	switch {
	case role == "user" || role == "system" || role == "developer":
		content, err := fromParts(item["content"])
		if err != nil {
			return nil, err
		}
		m := maps.Clone(item)
		delete(m, "type")
		delete(m, "status")
		m["content"] = encode(content)
		return append(chat, m), nil
	case role == "assistant" && kind == "message":
		content, err := fromParts(item["content"])
		if err != nil {
			return nil, err
		}
		return withAssistant(chat, func(m members) {
			m["content"] = encode(append(objects(m["content"]), content...))
		}), nil
	case kind == "function_call":
		return withAssistant(chat, func(m members) {
			m["tool_calls"] = encode(append(objects(m["tool_calls"]), call(item["call_id"], item["name"], item["arguments"])))
		}), nil
	case kind == "function_call_output":
		output := item["output"]
		if isList(output) {
			content, err := fromParts(output)
			if err != nil {
				return nil, err
			}
			output = encode(content)
		}
		result := message("tool", output)
		result["tool_call_id"] = item["call_id"]
		return append(chat, result), nil
	case kind == "reasoning":
		content := objects(item["content"])
		if len(content) == 0 {
			return nil, errNotUnderstood // llama-server refuses it
		}
		return withAssistant(chat, func(m members) {
			m["reasoning_content"] = content[0]["text"]
			if len(m["content"]) == 0 {
				m["content"] = encode([]members{})
			}
		}), nil
	}
	return nil, errNotUnderstood
}

// withAssistant changes the message of the assistant with which a chat ends, or a new one behind it.
func withAssistant(chat []members, change func(members)) []members {
	if len(chat) == 0 || stringOf(chat[len(chat)-1]["role"]) != "assistant" {
		chat = append(chat, members{"role": encode("assistant")})
	}
	change(chat[len(chat)-1])
	return chat
}

// fromParts returns the parts of a message for a content, which is a text or a list of parts.
func fromParts(content []byte) ([]members, error) {
	if isString(content) {
		return []members{textPart(content)}, nil
	}
	out := []members{}
	for _, part := range objects(content) {
		switch stringOf(part["type"]) {
		case "input_text", "output_text":
			out = append(out, textPart(part["text"]))
		case "input_image":
			out = append(out, image(part["image_url"]))
		case "refusal":
			out = append(out, members{"type": encode("refusal"), "refusal": part["refusal"]})
		default:
			return nil, errNotUnderstood // llama-server refuses it
		}
	}
	return out, nil
}
