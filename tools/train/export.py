"""Writes a checkpoint as an f16 GGUF file that Ollama's qwen3 loads, and reads such a file."""

import argparse
import json
import pathlib

import gguf
import jax
import numpy as np

import bpe
import checkpoint
import model

# The model has seen text alone, no turns of a chat.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
TOKENS_KEY, STEP_KEY = "kvtier.training.tokens", "kvtier.training.step"
BYTES_MAX = 8_000_000
NORMAL, CONTROL = 1, 3


def write(path, state, vocabulary, s):
    params = state["params"]
    w = gguf.GGUFWriter(path, "qwen3")
    w.add_name(f"kvtier trained model, {state['tokens'] / 1e6:.1f}M tokens")
    w.add_uint64(TOKENS_KEY, int(state["tokens"]))
    w.add_uint64(STEP_KEY, int(state["step"]))
    w.add_file_type(1)  # mostly f16
    w.add_block_count(s.layers)
    w.add_context_length(s.context)
    w.add_embedding_length(s.embed)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_layer_norm_rms_eps(s.epsilon)
    w.add_rope_freq_base(s.rope_base)
    w.add_rope_dimension_count(s.head_dim)
    tokens = vocabulary["tokens"]
    end_of_text, im_end = len(tokens) - len(bpe.SPECIALS), len(tokens) - 1
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([NORMAL] * end_of_text + [CONTROL] * len(bpe.SPECIALS))
    w.add_token_merges(vocabulary["merges"])
    w.add_add_bos_token(False)
    w.add_bos_token_id(end_of_text)
    w.add_pad_token_id(end_of_text)
    w.add_eos_token_id(end_of_text)
    w.add_array("tokenizer.ggml.eos_token_ids", [end_of_text, im_end])
    w.add_chat_template(TEMPLATE)

    def matrix(tensor, x):
        w.add_tensor(f"{tensor}.weight", np.ascontiguousarray(x, np.float32).astype(np.float16))

    matrix("token_embd", params["token_embd"])
    w.add_tensor("output_norm.weight", np.asarray(params["output_norm"], np.float32))
    for i in range(s.layers):
        for tensor, x in params[f"blk.{i}"].items():
            if x.ndim == 2:
                matrix(f"blk.{i}.{tensor}", np.asarray(x).T)
            else:
                w.add_tensor(f"blk.{i}.{tensor}.weight", np.asarray(x, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read(path, s):
    """Parameters, vocabulary, steps and training tokens of a file that write wrote."""
    r = gguf.GGUFReader(path)
    fields = {name: r.get_field(name) for name in (TOKENS_KEY, STEP_KEY, "tokenizer.ggml.tokens")}
    missing = [name for name, field in fields.items() if field is None]
    if missing:
        raise SystemExit(f"{path} has no {missing[0]}; name a file that export.py wrote")
    params = {}
    for t in r.tensors:
        x = np.array(t.data, np.float32)
        parts = t.name.removesuffix(".weight").split(".")
        if parts[0] == "blk":
            layer = params.setdefault(f"blk.{parts[1]}", {})
            layer[parts[2]] = x.T if x.ndim == 2 else x
        else:
            params[parts[0]] = x
    shapes = [jax.tree.map(np.shape, p) for p in (params, jax.eval_shape(lambda: model.init(s, 0)))]
    if shapes[0] != shapes[1]:
        raise SystemExit(f"{path} has another shape than {s}")
    tokens, step, vocabulary = (fields[name].contents() for name in (TOKENS_KEY, STEP_KEY, "tokenizer.ggml.tokens"))
    return params, vocabulary, step, tokens


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--checkpoint", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    state = checkpoint.load(a.checkpoint)
    vocabulary = json.loads((a.data / "vocabulary.json").read_text())
    write(a.out, state, vocabulary, model.Shape())
    size = a.out.stat().st_size
    if size > BYTES_MAX:
        raise SystemExit(f"{a.out} has {size} bytes, more than {BYTES_MAX}")
    print(f"{a.out}: {size} bytes, step {state['step']}, {state['tokens'] / 1e6:.2f}M tokens")


if __name__ == "__main__":
    main()
