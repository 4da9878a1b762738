"""Compares the exported file on a built Ollama with the JAX model: tokens and probabilities."""

import argparse
import functools
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import jax
import numpy as np

import bpe
import checkpoint
import evaluate
import model

PREFIXES = (1, 2, 7, 54, 97, 300, 1000, 2111, 4500)
TOP = 20
# Nats, of any of the most probable tokens. The engine rounds activations and K/V to f16. Flash
# attention is off: on a CPU ggml adds up its values in f16, which costs more the longer the text is.
DIFFERENCE_MAX = 0.02
START_SECONDS = 60


def ask(base, path, body):
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as r:
        return json.loads(r.read().splitlines()[-1])


def serve(binary, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, OLLAMA_HOST=f"127.0.0.1:{port}", OLLAMA_MODELS=f"{folder}/models", HOME=folder,
               OLLAMA_NEW_ENGINE="1", OLLAMA_FLASH_ATTENTION="0", OLLAMA_NUM_PARALLEL="1")
    log = open(f"{folder}/log", "w")
    process = subprocess.Popen([binary, "serve"], env=env, stdout=log, stderr=log, start_new_session=True)
    return process, f"http://127.0.0.1:{port}"


def wait(base, process):
    until = time.time() + START_SECONDS
    while True:
        try:
            return urllib.request.urlopen(base + "/api/version", timeout=5).read()
        except OSError:
            if time.time() > until or process.poll() is not None:
                raise
            time.sleep(0.2)


def upload(base, path):
    data = path.read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    urllib.request.urlopen(urllib.request.Request(f"{base}/api/blobs/{digest}", data, method="POST"), timeout=60).read()
    ask(base, "/api/create", {"model": "trained", "files": {"model.gguf": digest}, "stream": False})


def compare(base, tokenizer, vocabulary, held, params, s):
    predict = jax.jit(functools.partial(model.logits, s=s))
    worst, agree, seen, kls = 0.0, 0, 0, []
    for n in PREFIXES:
        prompt = tokenizer.decode(held[:n].tolist())
        ids = tokenizer.encode(prompt).ids
        answer = ask(base, "/api/generate", {
            "model": "trained", "prompt": prompt, "raw": True, "stream": False, "logprobs": True, "top_logprobs": TOP,
            "options": {"num_ctx": 8192, "num_predict": 1, "temperature": 0}})
        if answer["prompt_eval_count"] != len(ids):
            raise SystemExit(f"prefix {n}: {answer['prompt_eval_count']} tokens on the engine, {len(ids)} here")
        if not answer.get("logprobs"):
            print(f"prefix {n}: the engine ends the text or a character is incomplete; skipped")
            continue
        ours = np.asarray(jax.nn.log_softmax(predict(params, np.array([ids], np.int32))[0, -1]))
        best = np.argsort(-ours, kind="stable")[:TOP]
        theirs = {t["token"]: t["logprob"] for t in answer["logprobs"][0]["top_logprobs"]}
        differences = [abs(theirs[text] - ours[i]) for i in best if (text := tokenizer.decode([int(i)])) in theirs]
        first = max(theirs, key=theirs.get)
        worst, seen, agree = max(worst, max(differences)), seen + 1, agree + (tokenizer.decode([int(best[0])]) == first)
        print(f"prefix {n}: {len(differences)} of {TOP} tokens in both, at most {max(differences):.4f} nats apart, next {first!r}")
        if len(differences) < TOP // 2:
            raise SystemExit("the most probable tokens differ")
    print(f"{seen} prefixes, same best token {agree}, largest difference {worst:.4f} nats")
    if worst > DIFFERENCE_MAX or not seen:
        raise SystemExit(f"more than {DIFFERENCE_MAX}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--checkpoint", type=pathlib.Path, required=True)
    p.add_argument("--gguf", type=pathlib.Path, required=True)
    p.add_argument("--ollama", required=True, help="path of a built ollama")
    a = p.parse_args()
    params = evaluate.rounded(checkpoint.load(a.checkpoint)["params"])
    vocabulary = json.loads((a.data / "vocabulary.json").read_text())
    tokenizer = bpe.load(vocabulary)
    held = np.load(a.data / "heldout.npy").astype(np.int32)
    with tempfile.TemporaryDirectory() as folder:
        process, base = serve(a.ollama, folder)
        try:
            wait(base, process)
            upload(base, a.gguf)
            compare(base, tokenizer, vocabulary, held, params, model.Shape())
            sample = ask(base, "/api/generate", {"model": "trained", "prompt": "Package ", "raw": True, "stream": False,
                                                 "options": {"num_predict": 80, "temperature": 0.7, "seed": 1}})
            print(sample["response"])
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
