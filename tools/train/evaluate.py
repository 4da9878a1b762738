"""Perplexity of held-out text by position, and look-ups answered at a distance."""

import argparse
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import checkpoint
import model
import train

LOOKUPS = 12
SEED = 99


def rounded(params):
    """Parameters as the f16 file holds them."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float16).astype(jnp.float32) if x.ndim == 2 else jnp.asarray(x), params)


def lookups(rows, held, params, s, context):
    """Share of value tokens and of whole values that are the most probable continuation."""
    predict = jax.jit(functools.partial(model.logits, s=s))
    rng = np.random.default_rng(SEED)
    right = total = whole = 0
    for _ in range(LOOKUPS):
        lines = rows.table(rng, 12)
        line, before = lines[rng.integers(len(lines))]
        text = rows.header + [t for l, _ in lines for t in l]
        free = context - len(text) - len(line)
        tokens = np.concatenate([text, held[:free], line])[None].astype(np.int32)
        best = np.asarray(jnp.argmax(predict(params, tokens), -1))[0]
        first = tokens.shape[1] - len(line) + before
        value = tokens[0, first:-1]
        hits = best[first - 1:-2] == value
        right, total, whole = right + hits.sum(), total + len(hits), whole + hits.all()
    return right / total, whole / LOOKUPS


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--checkpoint", type=pathlib.Path, required=True)
    a = p.parse_args()
    s = model.Shape()
    params = rounded(checkpoint.load(a.checkpoint)["params"])
    held = np.load(a.data / "heldout.npy").astype(np.int32)
    loss = np.asarray(jax.jit(functools.partial(model.losses, s=s))(params, held[None, :4609]))[0]
    for first, last in [(0, 256), (256, 1024), (1024, 4608), (0, 4608)]:
        part = loss[first:last]
        print(f"held-out tokens {first}-{last}: {part.mean():.3f} nats, perplexity {np.exp(part.mean()):.1f} (chance {s.vocab})")
    rows = train.rows(a.data)
    for context in (256, 1024, 4608):
        share, whole = lookups(rows, held, params, s, context)
        print(f"look-ups over {context} tokens: {share:.2f} of value tokens, {whole:.2f} of {LOOKUPS} values")


if __name__ == "__main__":
    main()
