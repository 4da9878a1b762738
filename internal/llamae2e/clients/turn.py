"""Takes the next turn of an agent's conversation, with the client that such agents use.

turn.py CLIENT URL MODEL FILE: FILE has the turns so far, and gets this one. Prints the answer's text, the
tokens of the prompt, and those of them that the server had already, as JSON.
"""

import json
import os
import sys

client, url, model, path = sys.argv[1:]
turns = json.load(open(path)) if os.path.exists(path) else []
system = "You write programs, and look at files before you change them. " * 60
schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
name, described = "read", "Reads a <file>"
question = "Is there a bug in the first file?"


def result(turn):
    return f"package a // file {turn}\n" + "func f() { g() }\n" * 40


def openai_chat():
    import openai

    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for i, text in enumerate(turns):
        call = {"id": f"t{i}", "type": "function", "function": {"name": name, "arguments": json.dumps({"path": f"{i}.go"})}}
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"t{i}", "content": result(i)})
    tool = {"type": "function", "function": {"name": name, "description": described, "parameters": schema}}
    stream = openai.OpenAI(base_url=url + "/v1", api_key="none").chat.completions.create(
        model=model, messages=messages, tools=[tool], temperature=0, seed=1, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for chunk in stream:
        for choice in chunk.choices:
            text += (choice.delta.content or "") + (getattr(choice.delta, "reasoning_content", None) or "")
        usage = chunk.usage or usage
    return text, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def openai_responses():
    import openai

    items = [{"role": "user", "content": question}]
    for i, text in enumerate(turns):
        items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}], "id": f"m{i}", "status": "completed"})
        items.append({"type": "function_call", "call_id": f"t{i}", "name": name, "arguments": json.dumps({"path": f"{i}.go"})})
        items.append({"type": "function_call_output", "call_id": f"t{i}", "output": result(i)})
    tool = {"type": "function", "name": name, "description": described, "parameters": schema, "strict": False}
    stream = openai.OpenAI(base_url=url + "/v1", api_key="none").responses.create(
        model=model, instructions=system, input=items, tools=[tool], temperature=0, max_output_tokens=12, stream=True
    )
    text, usage = "", None
    for event in stream:
        if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
            text += event.delta
        if event.type == "response.completed":
            usage = event.response.usage
    return text, usage.input_tokens, usage.input_tokens_details.cached_tokens


def anthropic_messages():
    import anthropic

    messages = [{"role": "user", "content": question}]
    for i, text in enumerate(turns):
        use = {"type": "tool_use", "id": f"t{i}", "name": name, "input": {"path": f"{i}.go"}}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": text}, use]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": result(i)}]})
    blocks = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    tool = {"name": name, "description": described, "input_schema": schema}
    with anthropic.Anthropic(base_url=url, api_key="none").messages.stream(
        model=model, system=blocks, messages=messages, tools=[tool], max_tokens=12, extra_body={"temperature": 0}
    ) as stream:
        final = stream.get_final_message()
    text = "".join(getattr(b, "text", "") or getattr(b, "thinking", "") for b in final.content)
    cached = final.usage.cache_read_input_tokens or 0
    return text, final.usage.input_tokens + cached, cached


def ollama_chat():
    import ollama

    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for i, text in enumerate(turns):
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": result(i)})
    options = {"temperature": 0, "seed": 1, "num_predict": 12, "num_ctx": 8192}
    text, tokens = "", 0
    for part in ollama.Client(host=url).chat(model=model, messages=messages, options=options, stream=True, keep_alive=0):
        text += part.message.content or ""
        tokens = part.prompt_eval_count or tokens
    return text, tokens, 0


text, tokens, cached = globals()[client]()
json.dump(turns + [text], open(path, "w"))
print(json.dumps({"text": text, "prompt": tokens, "cached": cached}))
