"""Trains the byte-pair encoding and encodes the corpus.

The pre-tokenizer is the expression of Ollama's qwen3. Ids are in the order that
internal/testmodel writes: bytes, merges, three special tokens.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 4096
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# model/models/qwen3/model.go of Ollama
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SAMPLE = 2  # the encoding is trained on every second document


def byte_tokens():
    """byteLevel of internal/testmodel: one printable character for each byte."""
    out = []
    for b in range(256):
        r = b
        if b <= 0x20:
            r += 0x100
        elif 0x7F <= b <= 0xA0:
            r += 0xA2
        elif b == 0xAD:
            r = 0x143
        out.append(chr(r))
    return out


def wrap(model):
    t = Tokenizer(model)
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return t


def train(documents):
    draft = wrap(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIALS), initial_alphabet=byte_tokens(), show_progress=False)
    draft.train_from_iterator(documents, trainer)
    tokens, kept = byte_tokens(), []
    known = set(tokens)
    for left, right in json.loads(draft.to_str())["model"]["merges"]:
        if len(tokens) == VOCAB - len(SPECIALS):
            break
        kept.append((left, right))
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
    assert len(tokens) == VOCAB - len(SPECIALS), len(tokens)
    return {"tokens": tokens + SPECIALS, "merges": [f"{l} {r}" for l, r in kept]}


def of_file(path):
    """The encoding of a GGUF file that export.py wrote."""
    r = gguf.GGUFReader(path)
    return {name: r.get_field(f"tokenizer.ggml.{name}").contents() for name in ("tokens", "merges")}


def load(vocabulary):
    ids = {t: i for i, t in enumerate(vocabulary["tokens"][:-len(SPECIALS)])}
    return wrap(models.BPE(ids, [tuple(m.split(" ")) for m in vocabulary["merges"]]))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=pathlib.Path, required=True, help="folder that corpus.py wrote")
    p.add_argument("--vocabulary", type=pathlib.Path, help="take the encoding of this exported file instead of training one")
    a = p.parse_args()
    documents = json.loads((a.data / "corpus.json").read_text())
    vocabulary = of_file(a.vocabulary) if a.vocabulary else train(documents[::SAMPLE])
    (a.data / "vocabulary.json").write_text(json.dumps(vocabulary))
    t = load(vocabulary)
    end = VOCAB - len(SPECIALS)
    order = np.random.default_rng(0).permutation(len(documents))
    parts = []
    for start in range(0, len(order), 1000):
        for e in t.encode_batch([documents[i] for i in order[start:start + 1000]]):
            parts.append(np.array(e.ids + [end], np.uint16))
    stream = np.concatenate(parts)
    np.save(a.data / "tokens.npy", stream)
    held = t.encode((a.data / "heldout.txt").read_text()).ids
    np.save(a.data / "heldout.npy", np.array(held, np.uint16))
    print(f"{len(stream) / 1e6:.2f}M tokens, {sum(map(len, documents)) / len(stream):.2f} characters each; held out {len(held)}")


if __name__ == "__main__":
    main()
