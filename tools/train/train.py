"""Trains the model, with checkpoints from which it goes on.

The learning rate warms up and stays (the stable phase); `decay` starts from a stable
checkpoint, trains at a long context while the rate falls to 0, and leaves weights to export.
Rows of step n depend on the seed and n alone.

`stable --from FILE` starts from the weights of an exported file instead of random ones. The
file has no state of the optimizer, so the rate warms up again; steps and tokens go on from
the file's numbers, so that the rows are new ones.
"""

import argparse
import functools
import json
import pathlib
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bpe
import checkpoint
import export
import model
import tasks

SEED = 17
RATE = 3e-3
WARMUP_STEPS = 100
ROW_TOKENS = 4096  # tokens of a step
LONG_CONTEXT = 4608
LONG_ROWS = 1
# Stable phase: until so many tokens, this context.
PLAN = [(2_900_000, 256), (3_800_000, 512), (40_000_000, 1024)]
CHECKPOINT_SECONDS = 180
LOG_STEPS = 10


def optimizer(params, rate):
    """Muon for the matrices of the layers, AdamW for the embedding and norms."""
    def dims(path, x):
        in_layer = path[0].key != "token_embd"
        return optax.contrib.MuonDimensionNumbers() if in_layer and x.ndim == 2 else None

    spec = jax.tree_util.tree_map_with_path(dims, params)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.muon(rate, weight_decay=0.1, adam_weight_decay=0.0, consistent_rms=0.2,
                           muon_weight_dimension_numbers=spec))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def step(s, opt, params, opt_state, tokens, weights):
    def loss(p):
        each = model.losses(p, tokens, s)
        plain = (weights == 1).astype(jnp.float32)
        answers = (weights > 1).astype(jnp.float32)
        return (each * weights).sum() / weights.sum(), (
            (each * plain).sum() / plain.sum(), (each * answers).sum(), answers.sum())

    (_, seen), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = opt.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, seen


def rows(data):
    tokenizer = bpe.load(json.loads((data / "vocabulary.json").read_text()))
    words = (data / "words.txt").read_text().split()
    return tasks.Rows(np.load(data / "tokens.npy"), tokenizer, words)


def stable_context(tokens):
    return next((c for until, c in PLAN if tokens < until), PLAN[-1][1])


def beginning(a, s):
    """The state to go on from: this phase's checkpoint, the stable one, a file, or random weights."""
    for begin in (a.out / "decayed.pkl", a.out / "stable.pkl")[a.phase == "stable":]:
        if begin.exists():
            if a.start:
                raise SystemExit(f"{begin} exists; leave --from out to go on from it, or name another --out")
            return checkpoint.load(begin)
    if a.phase == "decay":
        raise SystemExit(f"{a.out / 'stable.pkl'} is missing; run the stable phase first")
    if not a.start:
        return {"params": model.init(s, SEED), "opt": None, "step": 0, "tokens": 0}
    params, tokens, step, trained = export.read(a.start, s)
    if tokens != json.loads((a.data / "vocabulary.json").read_text())["tokens"]:
        raise SystemExit(f"{a.start} has another vocabulary than {a.data}; run bpe.py with --vocabulary {a.start}")
    return {"params": params, "opt": None, "step": step, "tokens": trained, "opt_step": step}


def run(a):
    s = model.Shape()
    source, begun = rows(a.data), time.time()
    decaying = a.phase == "decay"
    target = a.out / ("decayed.pkl" if decaying else "stable.pkl")
    state = beginning(a, s)
    # The first step of the phase: a decay that was interrupted goes on with its own schedule.
    first_step = int(state.get("first_step", state["step"]))
    # The first step of the optimizer, which counts its own steps.
    opt_step = int(state.get("opt_step", 0))
    if decaying:
        per_step = LONG_ROWS * LONG_CONTEXT
        steps = max(1, a.tokens // per_step)
        rate = lambda n: a.rate * (1 - jnp.minimum(n + opt_step - first_step, steps) / steps)
    else:
        rate = lambda n: a.rate * jnp.minimum(1, (n + 1) / WARMUP_STEPS)
    opt = optimizer(state["params"], rate)
    opt_state = state["opt"] if state["opt"] is not None else opt.init(state["params"])
    if state["opt"] is not None:  # the schedule's closure differs, the state's structure does not
        opt_state = jax.tree.unflatten(jax.tree.structure(opt.init(state["params"])), jax.tree.leaves(opt_state))
    params = jax.tree.map(jnp.asarray, state["params"])
    n, tokens, saved = int(state["step"]), int(state["tokens"]), time.time()
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    log, since, clock = [], 0, time.time()
    while True:
        context = LONG_CONTEXT if decaying else stable_context(tokens)
        count = LONG_ROWS if decaying else ROW_TOKENS // context
        batch, weights = source.batch(np.random.default_rng([SEED, decaying, n]), count, context)
        params, opt_state, seen = step(s, opt, params, opt_state, batch, weights)
        n, tokens, since = n + 1, tokens + count * context, since + count * context
        log.append(seen)
        done = n - first_step >= steps if decaying else tokens >= a.tokens
        over = stopped or a.minutes and time.time() - begun > 60 * a.minutes
        if n % LOG_STEPS == 0 or done or over:
            plain = float(np.mean([x[0] for x in log]))
            answers = float(sum(x[1] for x in log)) / max(1.0, float(sum(x[2] for x in log)))
            speed = since / (time.time() - clock)
            print(f"{time.strftime('%H:%M:%S')} step {n} context {context} tokens {tokens / 1e6:.3f}M text {plain:.3f} answers {answers:.3f} "
                  f"{speed:.0f} tokens/s", flush=True)
            log, since, clock = [], 0, time.time()
        if done or over or time.time() - saved > CHECKPOINT_SECONDS:
            checkpoint.save(target, {"params": params, "opt": opt_state, "step": n, "tokens": tokens, "opt_step": opt_step}
                 | ({"first_step": first_step} if decaying else {}))
            saved = time.time()
        if done or over:
            return


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("phase", choices=["stable", "decay"])
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--tokens", type=int, default=16_000_000, help="stable: total to reach; decay: tokens of the decay")
    p.add_argument("--minutes", type=float, default=0, help="stop and save after so long; 0: never")
    p.add_argument("--rate", type=float, default=RATE)
    p.add_argument("--from", dest="start", type=pathlib.Path, help="stable: start from the weights of this exported file")
    a = p.parse_args()
    if a.start and a.phase != "stable":
        p.error("--from: only the stable phase starts from a file")
    a.out.mkdir(parents=True, exist_ok=True)
    run(a)


if __name__ == "__main__":
    main()
