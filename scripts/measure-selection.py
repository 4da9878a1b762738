#!/usr/bin/env python3
"""Measures what OLLAMA_PAGED_SELECT costs in quality, on a real model.

usage: measure-selection.py OLLAMA MODEL.gguf TEXT... [--budgets 512,1024,2048] [--times 20ms,40ms] [--context 8192]

OLLAMA is the patched program, MODEL a small one, such as SmolLM2-135M-Instruct, which `make run` fetches.
Each TEXT has many lines and is cut to the context. Needs nothing but Python. Settings of Ollama in the
environment do not count. Servers are started one after the other: one that attends to all, and two for
each budget of tokens: one that chooses, and one that attends to all of prompts that were cut to their
beginning and end, of as many tokens together as the budget ("cut"). Answers are greedy:

  text     32 tokens after each of four cuts of each text. "same": the share of tokens up to the first
           that differs from the answer with all tokens. "KL": the mean divergence, in nats, of the
           distributions up to there, over the 20 likeliest tokens and the rest as one
  look-up  the share of ten facts found that stand in each text, one in each tenth
  records  64 tokens of 100 sentences that are to be written as JSON, which three are already. "KL" as above

The first token of an answer is the prompt's, which attends to all tokens. With --times nothing but the time of
a token is measured, after the first text, beside the time that was asked for.
"""
import argparse
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

CUTS, ANSWER, RECORDS = 4, 32, 100
FACTS = (
    ("The capital of the kingdom of Zorvathia", "Mirabel"), ("The favourite dish of Captain Holloway", "mushroom"),
    ("The name of the lighthouse keeper", "Bartholomew"), ("The colour of the wizard's umbrella", "purple"),
    ("The pass key", "71432"), ("The horse of the young princess", "Thunderbolt"),
    ("The instrument that the robot played", "trombone"), ("The secret ingredient of the soup", "cinnamon"),
    ("The planet of the blue dragons", "Neptune"), ("The password of the old castle", "elderberry"))
PACED = 200     # tokens that are timed
HEAD_SHARE = 8  # a cut prompt keeps one part in so many of its beginning


class Server:
    """An Ollama with settings of its own."""

    def __init__(self, args, folder, **settings):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = "http://127.0.0.1:%d" % s.getsockname()[1]
        self.context = args.context
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OLLAMA_")}
        env = dict(kept, OLLAMA_HOST=self.url, OLLAMA_MODELS=folder + "/models", HOME=folder,
                   OLLAMA_NEW_ENGINE="1", OLLAMA_NUM_PARALLEL="1", OLLAMA_PAGED_ATTN="1",
                   OLLAMA_PAGED_CHUNK_SIZE="32", **settings)
        self.log = open(folder + "/log", "ab")
        self.process = subprocess.Popen([args.ollama, "serve"], env=env, stdout=self.log, stderr=self.log, start_new_session=True)
        self.await_start()
        try:
            with open(folder + "/Modelfile", "w") as f:
                f.write("FROM " + os.path.abspath(args.model))
            subprocess.run([args.ollama, "create", "model", "-f", folder + "/Modelfile"], env=env, check=True,
                           stdout=self.log, stderr=self.log)
        except BaseException:
            self.stop()
            raise

    def await_start(self):
        for _ in range(600):
            try:
                return urllib.request.urlopen(self.url).close()
            except OSError:
                time.sleep(0.1)
        self.stop()
        with open(self.log.name) as log:
            sys.exit("The server does not answer within a minute:\n" + log.read()[-2000:])

    def post(self, prompt, tokens):
        """Returns a response of the server."""
        body = {"model": "model", "prompt": prompt, "raw": True, "stream": False, "logprobs": True, "top_logprobs": 20,
                "options": {"temperature": 0, "num_predict": tokens, "num_ctx": self.context + 1024}}
        request = urllib.request.Request(self.url + "/api/generate", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=3600) as r:
            return json.load(r)

    def ask(self, prompt, tokens):
        """Returns the answer's text, its tokens with the likeliest others, and the prompt's length in tokens."""
        answer = self.post(prompt, tokens)
        return answer["response"], answer.get("logprobs") or [], answer["prompt_eval_count"]

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()
        self.log.close()


def divergence(p, q):
    """KL of two tokens' distributions, of which the likeliest are known, and the rest is one."""
    of = [{t["token"]: math.exp(t["logprob"]) for t in x["top_logprobs"]} for x in (p, q)]
    known = of[0].keys() & of[1].keys()
    pairs = [(of[0][t], of[1][t]) for t in known]
    rest = [max(1 - sum(x), 1e-6) for x in zip(*pairs)] if pairs else [1, 1]
    return sum(a * math.log(a / b) for a, b in [*pairs, tuple(rest)])


def compare(exact, other):
    """Returns the share of equal tokens before the first that differs, and the divergences up to there."""
    divergences, same = [], 0
    for a, b in zip(exact[1:], other[1:]):  # the first is the prompt's
        divergences.append(divergence(a, b))
        if a["token"] != b["token"]:
            break
        same += 1
    return same / max(1, len(exact) - 1), divergences


def with_facts(text):
    """Puts a fact at the end of a line in each tenth of a text."""
    for i, fact in reversed(list(enumerate(FACTS))):
        at = text.index("\n", int(len(text) * (i + 0.5) / len(FACTS)))
        text = text[:at] + "\n\n%s is called %s.\n" % fact + text[at:]
    return text


def records():
    r = random.Random(2)
    first, city = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry"), ("Paris", "Oslo", "Rome", "Lima", "Cairo")
    people = [(first[i % 8] + " " + chr(65 + i // 8) + chr(97 + i % 23) + "son", r.randrange(18, 90), r.choice(city)) for i in range(RECORDS)]
    told = "".join("%s is %d years old and lives in the city of %s, in a house near the river.\n" % p for p in people)
    return told + "\nThe same as JSON:\n" + "".join('{"name": "%s", "age": %d, "city": "%s"}\n' % p for p in people[:3])


def prompts(texts):
    """Yields the task, the prompt, the tokens wanted, and what the answer must have, if that is known."""
    for text in map(with_facts, texts):
        for i in range(1, CUTS + 1):
            yield "text", text[:int(len(text) * (0.5 + i / CUTS / 2))], ANSWER, None
        for asked, fact in FACTS:
            yield "look-up", text + "\n\n" + asked, 10, fact
    yield "records", records(), 64, None


def cut(prompt, tokens, budget):
    """Cuts a prompt of a number of tokens to a budget: its beginning and its end."""
    if tokens <= budget:
        return prompt
    keep = int(len(prompt) * budget / tokens)
    head = keep // HEAD_SHARE
    return prompt[:head] + prompt[len(prompt) - (keep - head):]


def run(args, tasks, folder, sizes=None, budget=None, **settings):
    server, answers = Server(args, folder, **settings), []
    try:
        for i, (task, prompt, tokens, _) in enumerate(tasks):
            answers.append(server.ask(cut(prompt, sizes[i], budget) if budget else prompt, tokens))
            print("\r%s %d of %d" % (task, i + 1, len(tasks)), end="", file=sys.stderr, flush=True)
    finally:
        server.stop()
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return answers


def token_time(args, text, folder, **settings):
    """Returns how many ms a token takes, of those behind the first of an answer, and where."""
    server = Server(args, folder, **settings)
    try:
        server.post(text, PACED)
        for end in range(10):  # an answer may end at once
            answer = server.post(text[:len(text) - 100 * end], PACED)
            if answer.get("eval_count", 0) > PACED / 2:
                return answer["eval_duration"] / answer["eval_count"] / 1e6, answer["prompt_eval_count"]
        sys.exit("No answer of the model has %d tokens." % (PACED / 2))
    finally:
        server.stop()


def row(name, tasks, exact, answers):
    same, divergences, found = [], {"text": [], "records": []}, []
    for (task, _, _, wanted), (_, whole, _), (text, got, _) in zip(tasks, exact, answers):
        if wanted:
            found.append(wanted in text)
            continue
        share, more = compare(whole, got)
        same += [share] if task == "text" else []
        divergences[task] += more
    columns = same, divergences["text"], found, divergences["records"]
    print("| %s | %.2f | %.4f | %.2f | %.4f |" % (name, *(sum(x) / len(x) for x in columns)), flush=True)


def main():
    args = argparse.ArgumentParser(usage=__doc__.split("\n")[2][7:])
    args.add_argument("ollama")
    args.add_argument("model")
    args.add_argument("texts", nargs="+")
    args.add_argument("--budgets", default="512,1024,2048")
    args.add_argument("--times", default="")
    args.add_argument("--context", type=int, default=8192)
    args = args.parse_args()
    texts = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        server = Server(args, folder)
        try:
            for name in args.texts:
                with open(name, encoding="utf-8") as f:
                    sample = f.read()
                size = server.ask(sample[:8000], 1)[2]
                texts.append(sample[:int(8000 / size * (args.context - 256) * 0.95)])
        finally:
            server.stop()
        if args.times:
            print("all: %.1f ms after %d tokens" % token_time(args, texts[0], folder), flush=True)
            for time_asked in args.times.split(","):
                print("%s: %.1f ms after %d tokens" % (time_asked, *token_time(args, texts[0], folder, OLLAMA_PAGED_SELECT=time_asked)), flush=True)
            return
        tasks = list(prompts(texts))
        exact = run(args, tasks, folder)
        sizes = [tokens for _, _, tokens in exact]
        print("prompts of %d to %d tokens\n" % (min(sizes), max(sizes)))
        print("| attends to | text: same | text: KL | look-up | records: KL |\n|---|--:|--:|--:|--:|", flush=True)
        row("all", tasks, exact, exact)
        for budget in map(int, args.budgets.split(",")):
            row("%d, chosen" % budget, tasks, exact, run(args, tasks, folder, OLLAMA_PAGED_SELECT=str(budget)))
            row("%d, cut" % budget, tasks, exact, run(args, tasks, folder, sizes, budget))


if __name__ == "__main__":
    main()
