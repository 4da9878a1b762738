#!/usr/bin/env python3
"""Measures which share of K and V a bound of attention scores lets decoding skip, on a real model.

usage: measure-bounds.py MODEL.gguf TOKENS.json... [--contexts 2048,4096,8192]

MODEL is of the llama architecture without RoPE scaling, such as SmolLM2-135M-Instruct, which `make run`
fetches. TOKENS is what llama-server's /tokenize answers for a text, at least as long as the longest
context; contexts are multiples of 2,048. Needs llama.cpp's package gguf, which brings numpy. The same
input gives the same tables; three contexts of that model take some five minutes of one core.

A page holds K and V of a layer for consecutive tokens. Its notes bound from above the mass of its
tokens, the sum of exp(q.k / sqrt(dim)). The first page and the newest are read, then the others from
the greatest bound down, until the bounds of the rest add up to at most eps of the mass that was read:
the rest is skipped with a proof. Bytes are those of pages read and of all notes (as f16), relative to
all K and V in f16. A page is skipped for a query head alone, for the query heads of a KV head (the
least that can be left unread), or for all heads, as a page of a layer holds all its KV heads. Queries
are every eighth of the last 256 positions of a context.

  mass           the oracle: no bound skips more. "floor": the most that one of the heads reads alone,
                 so that no choice of pages for all of them reads less
  max            the oracle of scores: every token counts as the page's greatest one
  channels       least and greatest value of each channel of K, as stored after RoPE
  pca            the same of K along the eigenvectors of its covariance within pages; unturned: along
                 those before RoPE, of pages that are turned back to their middle
  blocks of 16   channels of each 16 tokens of a page
  balls, boxes   k-means within a page, a cluster for 16 tokens: centre and radius, or channels
  pairs          greatest magnitude of each RoPE pair, which no rotation changes
  sectors        least and greatest magnitude and the arc of angles of each RoPE pair
  N bits         K rounded to N bits between the page's least and greatest values, and each token's
                 distance to that: a small copy of the keys, not a summary of the page
  ..., fixed     pages are met in the order of the text, and skipped while eps is not used up

The tables of mass choose pages without a proof, by these bounds, by the mean key, or by the mean key
and the variance of each channel: which share of the mass is in a budget of tokens.
"""
import argparse
import collections
import json
import sys

import gguf
import numpy as np

PAGES = (16, 32, 64, 128, 256, 2048)  # tokens; 1 is the oracles' alone
EPS = (1e-3, 1e-2)
BUDGETS = (512, 1024, 2048)  # tokens
BLOCK = 16  # tokens of a block or, on average, of a cluster
QUERY_SPAN, QUERY_STEP = 256, 8  # positions
MAX_FIXED = 1024  # pages of a context that are also met in the order of the text


def turn(x, angle):
    """Rotates pairs of neighbouring channels, as RoPE does: angle has one value for each pair."""
    cos, sin, a, b = np.cos(angle), np.sin(angle), x[..., ::2], x[..., 1::2]
    pairs = np.stack([a * cos - b * sin, a * sin + b * cos], -1)
    return pairs.reshape(*pairs.shape[:-2], -1)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def per_query(q, x):
    """Repeats what each KV head has for its query heads."""
    return np.repeat(x, len(q) // len(x), 0)


def forward(model, tokens, see):
    """Computes the prompt in f32, with K and V as f16 holds them, and returns the last token's logits.

    Calls see(layer, q, k, frequencies): q (heads, tokens, dim), k (kv heads, tokens, dim) after RoPE.
    """
    def meta(key):
        return model.fields["llama." + key].contents()

    def weight(name):
        return gguf.dequantize(tensors[name + ".weight"].data, tensors[name + ".weight"].tensor_type)

    def split(h, name, count):
        return (h @ weight(name).T).reshape(n, count, dim).transpose(1, 0, 2)

    tensors = {tensor.name: tensor for tensor in model.tensors}
    heads, kv_heads = meta("attention.head_count"), meta("attention.head_count_kv")
    eps, n, dim = meta("attention.layer_norm_rms_epsilon"), len(tokens), meta("embedding_length") // heads
    freq = meta("rope.freq_base") ** (-np.arange(0, dim, 2) / dim)
    angle = (np.arange(n)[:, None] * freq).astype("f4")
    x = weight("token_embd")[tokens]
    for layer in range(meta("block_count")):
        blk = f"blk.{layer}."
        h = norm(x, weight(blk + "attn_norm"), eps)
        q = turn(split(h, blk + "attn_q", heads), angle)
        k = turn(split(h, blk + "attn_k", kv_heads), angle).astype("f2").astype("f4")
        v = split(h, blk + "attn_v", kv_heads).astype("f2").astype("f4")
        see(layer, q, k, freq)
        out = attend(q * np.float32(dim ** -0.5), per_query(q, k), per_query(q, v))
        x = x + out.transpose(1, 0, 2).reshape(n, -1) @ weight(blk + "attn_output").T
        h = norm(x, weight(blk + "ffn_norm"), eps)
        gate = h @ weight(blk + "ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight(blk + "ffn_up").T)) @ weight(blk + "ffn_down").T
    return weight("output" if "output.weight" in tensors else "token_embd") @ norm(x[-1], weight("output_norm"), eps)


def attend(q, k, v, rows=128):
    out = np.empty_like(q)
    for start in range(0, q.shape[1], rows):
        end = min(start + rows, q.shape[1])
        scores = q[:, start:end] @ k[:, :end].swapaxes(1, 2)
        scores[:, np.arange(end) > np.arange(start, end)[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, start:end] = weights @ v[:, :end] / weights.sum(-1, keepdims=True)
    return out


def log_sum(x):
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


def channels(q, pages):
    """This and the functions down to bounds_of return the logarithm of an upper bound of pages' masses,
    (heads, rows, pages), for q (heads, rows, dim), which is scaled, and pages (kv heads, pages, tokens, dim)."""
    low, high = (per_query(q, x).swapaxes(1, 2) for x in (pages.min(2), pages.max(2)))
    return np.maximum(q, 0) @ high + np.minimum(q, 0) @ low + np.log(pages.shape[2])


def eigenvectors(pages):
    within = (pages - pages.mean(2, keepdims=True)).reshape(len(pages), -1, pages.shape[3])
    return np.linalg.eigh(within.swapaxes(1, 2) @ within)[1]


def pca(q, pages):
    basis = eigenvectors(pages)
    return channels(q @ per_query(q, basis), pages @ basis[:, None])


def pca_unturned(q, pages, freq):
    _, count, size, dim = pages.shape
    angle = (np.arange(count * size).reshape(count, size, 1) * freq).astype("f4")
    basis, middle = eigenvectors(turn(pages, -angle)), angle[:, size // 2, None]
    still = turn(pages, -middle) @ basis[:, None]
    turned = [channels(turn(q, -middle[p]) @ per_query(q, basis), still[:, p:p + 1]) for p in range(count)]
    return np.concatenate(turned, -1)


def blocks(q, pages):
    small = channels(q, pages.reshape(len(pages), -1, BLOCK, pages.shape[3]))
    return log_sum(small.reshape(*small.shape[:2], pages.shape[1], -1))


def clusters(q, pages, rounds=6):
    """Bounds of clusters by k-means, as balls and as boxes. A cluster without tokens has no mass."""
    tokens, many = pages.reshape(-1, *pages.shape[2:]), pages.shape[2] // BLOCK
    centres = tokens[:, BLOCK // 2::BLOCK]
    for _ in range(rounds):
        distance = (centres * centres).sum(-1)[:, None] - 2 * (tokens @ centres.swapaxes(1, 2))
        member = distance.argmin(-1)[..., None] == np.arange(many)  # pages, tokens, clusters
        held = member.sum(1, dtype="f4")[..., None]
        centres = member.swapaxes(1, 2).astype("f4") @ tokens / np.maximum(held, 1)
    low, high, radius = np.zeros_like(centres), np.zeros_like(centres), np.zeros_like(held)
    for page, c in np.argwhere(member.any(1)):
        mine = tokens[page, member[page, :, c]]
        low[page, c], high[page, c] = mine.min(0), mine.max(0)
        radius[page, c] = np.linalg.norm(mine - centres[page, c], axis=-1).max()
    by_head = [x.reshape(len(pages), -1, x.shape[2]) for x in (centres, radius, low, high, held)]
    centres, radius, low, high, held = (per_query(q, x).swapaxes(1, 2) for x in by_head)
    with np.errstate(divide="ignore"):
        held = np.log(held)
    balls = q @ centres + np.linalg.norm(q, axis=-1, keepdims=True) * radius
    scores = balls, np.maximum(q, 0) @ high + np.minimum(q, 0) @ low
    return [log_sum((x + held).reshape(*x.shape[:2], -1, many)) for x in scores]


def magnitude(x):
    return np.hypot(x[..., ::2], x[..., 1::2])


def pairs(q, pages):
    return magnitude(q) @ per_query(q, magnitude(pages).max(2)).swapaxes(1, 2) + np.log(pages.shape[2])


def sectors(q, pages):
    angles = np.sort(np.arctan2(pages[..., 1::2], pages[..., ::2]), 2)
    gaps = np.concatenate([np.diff(angles, axis=2), angles[:, :, :1] + 2 * np.pi - angles[:, :, -1:]], 2)
    widest = gaps.argmax(2)[:, :, None]  # the arc is the circle without its widest gap
    half = np.pi - np.take_along_axis(gaps, widest, 2)[:, :, 0] / 2
    middle = per_query(q, np.take_along_axis(angles, (widest + 1) % pages.shape[2], 2)[:, :, 0] + half)
    low, high, half = (per_query(q, x) for x in (magnitude(pages).min(2), magnitude(pages).max(2), half))
    lengths, towards, bounds = magnitude(q), np.arctan2(q[..., 1::2], q[..., ::2]), []
    for p in range(pages.shape[1]):
        apart = np.abs((towards - middle[:, None, p] + np.pi) % (2 * np.pi) - np.pi)
        cos = np.cos(np.maximum(apart - half[:, None, p], 0))
        bounds.append((lengths * cos * np.where(cos > 0, high[:, None, p], low[:, None, p])).sum(-1))
    return np.stack(bounds, -1) + np.log(pages.shape[2])


def rounded(q, pages, bits):
    low = pages.min(2, keepdims=True)
    step = np.maximum(pages.max(2, keepdims=True) - low, 1e-9) / (2 ** bits - 1)
    near = np.round((pages - low) / step) * step + low
    apart = np.linalg.norm(pages - near, axis=-1)
    shape = (*q.shape[:2], *apart.shape[1:])
    scores = (q @ per_query(q, near.reshape(len(pages), -1, pages.shape[3])).swapaxes(1, 2)).reshape(shape)
    by_step = np.abs(q) @ per_query(q, step[:, :, 0] / 2).swapaxes(1, 2)
    by_length = np.linalg.norm(q, axis=-1)[..., None, None] * per_query(q, apart)[:, None]
    return log_sum(scores + np.minimum(by_step[..., None], by_length))


def bounds_of(q, pages, freq):
    """Yields each method's name, bound, and the bytes of its notes relative to K and V of a page."""
    size, dim = pages.shape[2:]
    yield "channels", channels(q, pages), 1 / size
    yield "pca", pca(q, pages), 1 / size
    yield "pca, unturned", pca_unturned(q, pages, freq), 1 / size
    yield "blocks of 16", blocks(q, pages), 1 / BLOCK
    balls, boxes = clusters(q, pages)
    yield "balls", balls, (dim + 1) / (2 * dim) / BLOCK
    yield "boxes", boxes, 1 / BLOCK
    yield "pairs", pairs(q, pages), 1 / (4 * size)
    yield "sectors", sectors(q, pages), 1 / size
    for bits in (2, 3, 4):
        yield f"{bits} bits", rounded(q, pages, bits), bits / 32 + 1 / size + 1 / (2 * dim)


def guesses_of(q, pages):
    """Estimates of a page's mass that prove nothing: the mean key, and with each channel's variance."""
    mean = q @ per_query(q, pages.mean(2)).swapaxes(1, 2)
    yield "mean", mean
    yield "mean, variance", mean + (q * q) @ per_query(q, pages.var(2)).swapaxes(1, 2) / 2


def pages_read(bound, true, read):
    """Pages (groups, rows) that are read, for each eps, from the greatest bound down.

    bound and true are masses (groups, heads, rows, pages); read (groups, heads, rows) is read first.
    """
    order = np.argsort(-(bound / read[..., None]).max(1), -1)[:, None]
    bound, true = (np.take_along_axis(x, order, -1) for x in (bound, true))
    rest = np.cumsum(bound[..., ::-1], -1)[..., ::-1]
    before = read[..., None] + np.cumsum(true, -1) - true
    return [(rest > eps * before).any(1).sum(-1) for eps in EPS]


def pages_read_fixed(bound, true, read, eps):
    skipped, count = np.zeros_like(read), 0
    for p in range(bound.shape[-1]):
        skip = (skipped + bound[..., p] <= eps * read).all(1, keepdims=True)
        skipped, read = skipped + bound[..., p] * skip, read + true[..., p] * ~skip
        count = count + ~skip[:, 0]
    return count


def measure(q, k, freq, rows, add):
    """Measures one layer of a context: add(kind, level, limit, method, page size, percent)."""
    scores = q @ per_query(q, k).swapaxes(1, 2)
    scores[:, np.arange(k.shape[1]) > rows[:, None]] = -1e4
    top = scores.max(-1, keepdims=True)
    for size in (1, *PAGES):
        page = np.arange(k.shape[1] // size)
        rest = (page > 0) & (page < rows[:, None] // size)  # neither the first nor the newest
        tokens, guesses = rows + 1 - rest.sum(-1) * size, {}
        pages = k.reshape(len(k), -1, size, k.shape[2])
        paged = scores.reshape(*scores.shape[:2], -1, size)
        oracles = ("mass", log_sum(paged), 0), ("max", paged.max(-1) + np.log(size), 0)
        mass = np.exp(oracles[0][1] - top)
        true, read = mass * rest, (mass * ~rest).sum(-1)
        for name, bound, notes in (*oracles, *(bounds_of(q, pages, freq) if size > 1 else ())):
            guesses[name] = bound - top
            bound = np.exp(np.minimum(guesses[name], 80)) * rest  # 80: f32 ends at 88
            if (bound < true * (1 - 2e-3)).any():
                sys.exit(f"{name}: a bound is below the mass of a page of {size} tokens")
            for level, eps, method, count in counts_of(name, bound, true, read, len(k)):
                percent = 100 * (((count * size + tokens) / (rows + 1)).mean() + notes)
                add("bytes", level, eps, method, size, percent)
        if size in PAGES[:-1]:
            guesses.update(guesses_of(q, pages))
            for name, guess in guesses.items():
                guess = np.where(rest, guess, -np.inf)
                share = np.exp(guess - log_sum(guess)[..., None])
                for level, budget, percent in captured(share, true, read, len(k), size):
                    add("mass", level, budget, name, size, percent)


def levels(kv_heads, *arrays):
    """Yields how heads agree, and the arrays (heads, ...) as (groups, heads of a group, ...)."""
    heads = len(arrays[0])
    for level, size in ("query head", 1), ("KV head", heads // kv_heads), ("all heads", heads):
        yield level, size, [x.reshape(-1, size, *x.shape[1:]) for x in arrays]


def counts_of(name, bound, true, read, kv_heads):
    """Yields the level, eps, method and number of pages read, (groups, rows), beside the first and newest."""
    for level, size, group in levels(kv_heads, bound, true, read):
        counts = {name: pages_read(*group)}
        alone = counts[name] if size == 1 else alone
        if name == "mass":
            counts["mass, floor"] = [x.reshape(-1, size, x.shape[-1]).max(1) for x in alone]
        if name in ("mass", "channels") and bound.shape[-1] <= MAX_FIXED:
            counts[name + ", fixed"] = [pages_read_fixed(*group, eps) for eps in EPS]
        yield from ((level, eps, method, count) for method in counts for eps, count in zip(EPS, counts[method]))


def captured(share, true, read, kv_heads, size):
    """Yields the percent of the mass in the first page, the newest, and the best by share: heads add theirs."""
    for level, _, (share, true, read) in levels(kv_heads, share, true, read):
        order = np.argsort(-share.sum(1, keepdims=True), -1)
        for budget in BUDGETS:
            if budget >= 2 * size:
                got = np.take_along_axis(true, order[..., :budget // size - 2], -1).sum(-1)
                yield level, budget, 100 * ((read + got) / (read + true.sum(-1))).mean()


def table(title, cells):
    """Prints the means of cells, {(row, column): values}, in Markdown."""
    columns = sorted({column for _, column in cells})
    print(f"\n{title}\n\n| |", " | ".join(map(str, columns)), "|\n|---|" + "--:|" * len(columns))
    for row in dict.fromkeys(row for row, _ in cells):
        values = [f"{np.mean(cells[row, column]):.1f}" if (row, column) in cells else "" for column in columns]
        print("|", row, "|", " | ".join(values), "|")


def main():
    args = argparse.ArgumentParser(usage=__doc__.split("\n")[2][7:])
    args.add_argument("model")
    args.add_argument("tokens", nargs="+")
    args.add_argument("--contexts", default="2048,4096,8192")
    args = args.parse_args()
    contexts, model = [int(n) for n in args.contexts.split(",")], gguf.GGUFReader(args.model)
    tables = collections.defaultdict(lambda: collections.defaultdict(list))

    def see(layer, q, k, freq):
        print(f"layer {layer}", file=sys.stderr)
        for n in contexts:
            def add(kind, level, limit, method, size, percent):
                tables[kind, n, level, limit][method, size].append(percent)
                if (kind, limit, size) == ("bytes", EPS[0], PAGES[0]):
                    tables["layers", n, level, limit][layer, method].append(percent)
            rows = np.arange(n - 1, n - 1 - QUERY_SPAN, -QUERY_STEP)
            measure(q[:, rows] * np.float32(q.shape[2] ** -0.5), k[:, :n], freq, rows, add)

    for path in args.tokens:
        with open(path, encoding="utf-8") as file:
            tokens = json.load(file)["tokens"][:max(contexts)]
        logits = forward(model, tokens, see)
        print(f"{path}: next token {logits.argmax()}", file=sys.stderr)
    for (kind, n, level, limit), cells in tables.items():
        table(f"{kind}, {n} tokens, {level}, {'budget' if kind == 'mass' else 'eps'} {limit}", cells)


if __name__ == "__main__":
    main()
