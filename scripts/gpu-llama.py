#!/usr/bin/env python3
"""Measures kvtier before a llama-server, for scripts/gpu-llama.sh: one step of
docs/gpu.md's list for each run. Needs Linux and the standard library.

A step is a list of cases. Each case that ends adds a line of JSON to --figures, and a case that
is there already is not run again, so that a step that was killed goes on where it was.
"""
import argparse
import contextlib
import ctypes
import glob
import http.client
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

REQUEST_SECONDS = 120
READY_SECONDS = 120
DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG

LLAMA_8B = "-arch llama -layers 32 -embed 4096 -heads 32 -kv-heads 8 -head-dim 128 -ffn 14336"
LFM2_1B = "-arch lfm2 -layers 16 -embed 2048 -heads 32 -kv-heads 8 -head-dim 64 -ffn 8192"

# Sizes for a card with 64 GiB, and for a trial on a CPU.
SIZES = {
    "card": {
        "big": LLAMA_8B, "big-hybrid": LFM2_1B, "lengths": [4096, 16384, 32768], "hybrid-lengths": [16384],
        "short": [256, 512, 1024, 2048, 8192], "rounds": 1, "turn": 1500, "beside": 16384, "beside-seconds": 6,
        "rows": 4096, "fewer": "16", "kills": 2,
        "llama": "-arch llama -layers 4 -embed 1024 -heads 16 -kv-heads 4 -head-dim 128",
        "lfm2": "-arch lfm2 -layers 4 -embed 1024 -heads 16 -kv-heads 4",
        "qwen35": "-arch qwen35 -layers 4 -embed 1024 -heads 16 -kv-heads 4",
        "mla": "-arch deepseek2 -layers 4 -embed 1024 -heads 16 -head-dim 512",
    },
    "tiny": {
        "big": "-arch llama", "big-hybrid": "-arch lfm2", "lengths": [512], "hybrid-lengths": [512],
        "short": [256, 1024], "rounds": 1, "turn": 700, "beside": 700, "beside-seconds": 3,
        "rows": 300, "fewer": "2", "kills": 1,
        "llama": "-arch llama", "lfm2": "-arch lfm2", "qwen35": "-arch qwen35", "mla": "-arch deepseek2",
    },
}
PARTS = ["machine", "build", "models", "a", "b", "e", "c", "d", "f"]
MODELS = ["big", "big-hybrid", "llama", "lfm2", "qwen35", "mla"]

# Of step b: model, and arguments of the server.
SAME = [
    ("llama", "-fa on"), ("llama", "-fa off"), ("llama", "-fa auto"), ("llama", "-fa on -ctk q8_0 -ctv q8_0"),
    ("llama", "-fa auto -np 4"), ("lfm2", "-fa auto"), ("qwen35", "-fa auto"), ("mla", "-fa auto -nr"), ("mla", "-fa off -nr"),
]


class Failed(Exception):
    """A sentence about a case that cannot go on."""


def some_tokens(seed, count):
    """A prompt that no other seed has; tokens are common words of testmodel's vocabulary."""
    return random.Random(seed).choices(range(300, 1300), k=count)


def until(what, seconds, condition):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what} took more than {seconds:g} s.")
        time.sleep(0.01)
    return result


# --- processes -------------------------------------------------------------------------------


def processes():
    """Parent, start and name of each process."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError):
            with open(path, encoding="ascii", errors="replace") as file:
                head, tail = file.read().rsplit(")", 1)
            fields = tail.split()
            if fields[0] != "Z":
                found[int(path.split("/")[2])] = (int(fields[1]), fields[19], head.split("(", 1)[1])
    return found


def below(pid):
    """Number and start of a process and of all below it, the last one started last."""
    known, family = processes(), [pid]
    for member in family:
        family += [child for child, (parent, _, _) in known.items() if parent == member]
    return [(member, known[member][1]) for member in family if member in known]


def running(family):
    known = processes()
    return [pid for pid, start in family if known.get(pid, (0, None))[1] == start]


def die_with_parent():
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def video_memory():
    """MiB in use on the card, or None where there is no nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return None
    card = ["-i", os.environ["CARD"]] if os.environ.get("CARD") else []
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", *card],
                         capture_output=True, text=True, timeout=20, check=True).stdout
    return int(out.split()[0])


# --- servers ---------------------------------------------------------------------------------


class Server:
    """A llama-server, or ours before it if there is a folder of pages."""

    def __init__(self, run, model, args, pages=None):
        self.run, self.pages = run, pages
        self.log = os.path.join(run.work, "daemon.log")
        self.output = os.path.join(run.work, "server.log")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.log)
        self.process = self.start([run.daemon if pages else run.server, "--model", run.model(model), "--port", str(self.port), "--host",
                                   "127.0.0.1", "--no-webui", "--offline", "-ngl", "99", *run.server_args, *args.split()])
        try:
            self.ready()
        except BaseException:
            self.kill()
            raise

    def start(self, command):
        env = dict(os.environ, TMPDIR=self.run.tmp)
        if self.pages:
            os.makedirs(self.pages, exist_ok=True)
            env.update(OLLAMA_KV_TIERING="1", OLLAMA_KV_TIER_LOCAL=self.pages, OLLAMA_KV_TIER_LOCAL_GB="0", KVTIER_LLAMA_LOG=self.log,
                       KVTIER_LLAMA_SERVER=self.run.server)
        else:
            command += ["--cache-ram", "0"]  # as ours has it
        with open(self.output, "wb") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, preexec_fn=die_with_parent)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def ready(self):
        began = time.monotonic()
        until("Loading", READY_SECONDS, self.healthy)
        if self.pages:
            until("Opening the pages", READY_SECONDS, self.settled)
        self.load_seconds = round(time.monotonic() - began, 2)
        if not self.run.cpu and "no usable GPU found" in self.text(self.output):
            raise Failed("The server runs, but it finds no GPU.")

    @staticmethod
    def text(path):
        with contextlib.suppress(FileNotFoundError):
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        return ""

    def last_words(self):
        return " | ".join(self.text(self.output).splitlines()[-3:])

    def healthy(self):
        if self.process.poll() is not None:
            raise Failed(f"The server ended with status {self.process.returncode}: {self.last_words()}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/health")[0].status == 200
        return False

    def settled(self):
        log = self.text(self.log)
        if "kv tier: off" in log or self.process.poll() is not None:
            raise Failed("kvtier is off: " + " | ".join(log.splitlines()[-3:]))
        return "kv tier: on" in log

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        return connection.getresponse(), connection

    def events(self, prompt, count, **more):
        """Events of an answer, each with the seconds since the request."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "seed": 1, "stream": True, "return_tokens": True, "ignore_eos": True}
        began = time.monotonic()
        response, connection = self.request("POST", "/completion", body | more)
        with contextlib.closing(connection):
            if response.status != 200:
                raise Failed(f"The server answers {response.status}: {response.read(300)!r}")
            for line in response:
                if line.startswith(b"data: "):
                    yield time.monotonic() - began, json.loads(line[len("data: "):])

    def ask(self, prompt, count=8, **more):
        answer = {"tokens": [], "probabilities": []}
        timings = None
        for seconds, event in self.events(prompt, count, **more):
            answer.setdefault("first_ms", round(1000 * seconds, 2))
            answer["tokens"] += event.get("tokens", [])
            answer["probabilities"] += event.get("completion_probabilities", [])
            timings = event.get("timings") if event.get("stop") else None
        if not timings:
            raise Failed("An answer broke off: " + self.last_words())
        return answer | {"cached": timings["cache_n"], "computed": timings["prompt_n"]}

    def save(self, name):
        response, connection = self.request("POST", "/slots/0?action=save", {"filename": name})
        with contextlib.closing(connection):
            if response.status != 200:
                raise Failed(f"The slot is not saved: {response.read(300)!r}")

    def wait_for_pages(self):
        """Waits until the store's files have been the same for a while."""
        since = time.monotonic()
        seen = None

        def same():
            nonlocal since, seen
            now = store_size(self.pages)
            if now != seen:
                since, seen = time.monotonic(), now
            return time.monotonic() - since > self.run.settle

        until("Storing pages", REQUEST_SECONDS, same)

    def kill(self, which=0):
        """Kills one of the server's processes, the first as Ollama does, and waits for the end of all."""
        family = below(self.process.pid)
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(family[which][0], signal.SIGKILL)
        try:
            until("Ending", self.run.gone, lambda: self.process.poll() is not None and not running(family))
        finally:
            for pid in running(family):
                os.kill(pid, signal.SIGKILL)
        return round(time.monotonic() - began, 2)


def store_size(folder):
    files = size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(os.path.join(path, name)).st_size
                files += 1
    return files, size


def forget_cached(folder):
    """Empties the page cache of a folder's files, and of no others: a model stays."""
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError), open(os.path.join(path, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- a: first tokens; e: from which length on restoring wins ------------------------------------


def timed(answer):
    return {key: answer[key] for key in ("first_ms", "cached", "computed")}


def conversations(seed, lengths):
    """Of each length the first turn's prompt, and what the second adds to the first answer."""
    return {n: [some_tokens(1000 * seed + n, n), some_tokens(n + 1, 8)] for n in lengths}


def slots_for(lengths):
    return f"-np {len(lengths)} -c {len(lengths) * (max(lengths) + 1024)}"


def hold(server, talk, figures):
    """The first two turns, the second hot; talk becomes the tokens of both."""
    for n, (prompt, more) in talk.items():
        for name in ("cold", "hot"):
            answer = server.ask(prompt)
            figures[n][name] = timed(answer)
            prompt = talk[n] = prompt + answer["tokens"]
            if server.pages:
                server.wait_for_pages()
            prompt = prompt + more


def first_tokens(run, model, lengths, seed):
    """One round: a stock server; ours; ours killed, with the page cache full, then empty."""
    figures = {n: {} for n in lengths}
    stock = {n: {} for n in lengths}
    talk = conversations(seed, lengths)
    with Server(run, model, slots_for(lengths)) as server:
        server.ask(some_tokens(7, 64))
        hold(server, talk, stock)
    talk = conversations(seed, lengths)
    with run.pages() as pages:
        with Server(run, model, slots_for(lengths), pages) as server:
            server.ask(some_tokens(7, 64))
            hold(server, talk, figures)
            loads = [server.load_seconds]
        for seed, name in enumerate(("full", "empty")):
            if name == "empty":
                forget_cached(pages)
            with Server(run, model, slots_for(lengths), pages) as server:
                loads.append(server.load_seconds)
                for n, tokens in talk.items():
                    figures[n]["restored_" + name] = timed(server.ask(tokens + some_tokens(seed, 8)))
                    server.wait_for_pages()
    return [{"tokens": n, "stock": stock[n], "ours": figures[n], "load_s": loads} for n in lengths]


def step_a(run):
    for i in range(run.size["rounds"]):
        run.case(f"llama {i}", lambda i=i: first_tokens(run, "big", run.size["lengths"], 10 + i))
    run.case("hybrid", lambda: first_tokens(run, "big-hybrid", run.size["hybrid-lengths"], 20))


def step_e(run):
    run.case("short", lambda: first_tokens(run, "big", run.size["short"], 30))
    run.case("from", lambda: restoring_wins(run))


def restoring_wins(run):
    """Each length's first token restored over computed, and the least length from which on it is less."""
    rows = []
    for figures in [*run.earlier("a"), *run.earlier("e")]:
        if not figures["case"].startswith("hybrid"):
            rows += [(row["tokens"], row) for row in figures.get("figures", []) if "ours" in row]
    ratios = {}
    for n, row in rows:
        ratio = round(row["ours"]["restored_full"]["first_ms"] / row["stock"]["cold"]["first_ms"], 3)
        ratios.setdefault(n, []).append(ratio)
    wins = None
    for n in sorted(ratios, reverse=True):
        if max(ratios[n]) >= 1:
            break
        wins = n
    return [{"restored_over_computed": {str(n): ratios[n] for n in sorted(ratios)}, "wins_from_tokens": wins}]


# --- b: the same to the bit --------------------------------------------------------------------


def say(server, prompt):
    answer = server.ask(prompt, 12, n_probs=5)
    if len(answer["probabilities"]) != 12:
        raise Failed(f"12 tokens have {len(answer['probabilities'])} log probabilities.")
    return answer


def differences(want, got):
    """How two answers differ; None if log probabilities are the same to the bit."""
    if want["tokens"] == got["tokens"] and want["probabilities"] == got["probabilities"]:
        return None
    at = next((i for i, pair in enumerate(zip(want["tokens"], got["tokens"])) if pair[0] != pair[1]), None)
    pairs = list(zip(want["probabilities"], got["probabilities"]))[:at]
    return {"first_other_token": at, "largest": max((abs(a["logprob"] - b["logprob"]) for a, b in pairs), default=None)}


def same_after_a_kill(run, model, args):
    context = "" if "-np" in args else "-np 1 -c 4096"
    args = f"{args} {context or '-c 16384'}"
    first = some_tokens(40, run.size["turn"])
    with Server(run, model, args) as server:
        wanted = [say(server, first)]
        second = first + wanted[0]["tokens"] + some_tokens(41, 100)
        wanted.append(say(server, second))
    with run.pages() as pages:
        got = []
        for prompt in (first, second):
            with Server(run, model, args, pages) as server:
                got.append(say(server, prompt))
                server.wait_for_pages()
    result = {"model": model, "args": args, "cached": got[1]["cached"], "of": wanted[1]["cached"],
              "computed": differences(wanted[0], got[0]), "restored": differences(wanted[1], got[1])}
    result["same"] = result["computed"] is None and result["restored"] is None and result["cached"] == result["of"]
    return [result]


def step_b(run):
    for model, args in SAME:
        run.case(f"{model} {args}", lambda model=model, args=args: same_after_a_kill(run, model, args))
    wrong = [figures["case"] for figures in run.earlier("b") if not all(row["same"] for row in figures.get("figures", []))]
    if wrong:
        raise Failed("Not the same to the bit, or computed again: " + ", ".join(wrong) + ".")


# --- c: what a save costs another stream ---------------------------------------------------------


class Stream(threading.Thread):
    """A long answer that is read until it is told to end."""

    def __init__(self, server):
        super().__init__()
        self.server, self.times, self.error, self.last = server, [], None, threading.Event()

    def run(self):
        try:
            for _ in self.server.events(some_tokens(50, 64), 100_000):
                self.times.append(time.monotonic())
                if self.last.is_set():
                    return
        except Exception as err:  # it is told below, by the thread that waits
            self.error = err

    def gaps(self, since, seconds):
        """Gaps in so many seconds, or in more where tokens are rare."""
        time.sleep(seconds)
        until("The other stream's tokens", REQUEST_SECONDS, lambda: not self.is_alive() or sum(t >= since for t in self.times) > 10)
        if not self.is_alive():
            raise Failed(f"The other stream ended early: {self.error}")
        times = [t for t in self.times if t >= since]
        gaps = sorted(1000 * (b - a) for a, b in zip(times, times[1:]))
        return {"tokens": len(times), "p50_ms": round(gaps[len(gaps) // 2], 2), "p99_ms": round(gaps[int(0.99 * (len(gaps) - 1))], 2),
                "longest_ms": round(gaps[-1], 2)}


def gaps_beside(run, pages):
    """Gaps of a stream after another slot's answers: a new conversation, then its next turn."""
    n = run.size["beside"]
    rows = []
    with Server(run, "big", f"-np 2 -c {4 * (n + 4096)}", pages) as server:
        stream = Stream(server)
        stream.start()
        try:
            until("A first token", REQUEST_SECONDS, lambda: stream.times or stream.error)
            prompt = some_tokens(51, n)
            for turn in ("first", "next"):
                answer = server.ask(prompt)
                ended = time.monotonic()
                row = {"turn": turn, "tokens": len(prompt), "ours": bool(pages)}
                rows.append(row | stream.gaps(ended, run.size["beside-seconds"]))
                prompt = prompt + answer["tokens"] + some_tokens(52, 200)
        finally:
            stream.last.set()
            server.kill()
            stream.join()
    return rows


def ours_beside(run):
    with run.pages() as pages:
        return gaps_beside(run, pages)


def step_c(run):
    run.case("stock", lambda: gaps_beside(run, None))
    run.case("ours", lambda: ours_beside(run))


# --- d: rows under other arguments ---------------------------------------------------------------


class Rows:
    """K and V of a saved slot: package llamastate describes the file. Flash attention is on."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 0
        magic, self.version, words = self.take("<III")
        if magic != 0x67677371 or not 2 <= self.version <= 4:
            raise Failed(f"The slot's file is of another kind: {magic:#x}, version {self.version}.")
        self.at += 4 * words
        streams = self.take("<I")[0]
        cells = [n for n in (self.cells() for _ in range(streams)) if n]
        transposed, layers = self.take("<II")
        if self.version == 4:
            self.take("<II")
        if len(cells) != 1 or transposed:
            raise Failed("The slot's file has several streams, or columns of V.")
        self.parts = {f"{name}{layer}": self.rows(cells[0]) for name in "KV" for layer in range(layers)}

    def take(self, layout):
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def cells(self):
        count = self.take("<I")[0]
        for _ in range(count):
            self.take("<iIi")
        return count

    def rows(self, cells):
        _, width = self.take("<iQ")
        begin, self.at = self.at, self.at + cells * width
        return [self.data[begin + i * width:begin + (i + 1) * width] for i in range(cells)]


def differing(base, other):
    """Which parts of a saved slot differ, and how many rows of them."""
    counts = {name: sum(a != b for a, b in zip(rows, other.parts[name])) for name, rows in base.parts.items()}
    differ = [name for name, count in counts.items() if count]
    return {"parts": len(counts), "parts_that_differ": len(differ), "first": differ[:1], "rows": sum(counts.values()),
            "of_rows": sum(len(rows) for rows in base.parts.values())}


def saved_rows(run, args, name):
    folder = os.path.join(run.work, "slots")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with Server(run, "big", f"-np 1 -c {run.size['rows'] + 1024} -fa on --slot-save-path {folder}/ {args}") as server:
        server.ask(some_tokens(60, run.size["rows"]), 1)
        server.save(name)
    return path


def rows_under(run, args):
    base = os.path.join(run.work, "slots", "base")
    if not os.path.exists(base):
        os.rename(saved_rows(run, "", "base.new"), base)
    other = saved_rows(run, args, "other")
    result = differing(Rows(base), Rows(other))
    os.remove(other)
    return [{"args": args} | result]


def step_d(run):
    for args in ("-ngl 99", f"-ngl {run.size['fewer']}", "--load-mode none"):
        run.case(args, lambda args=args: rows_under(run, args))
    shutil.rmtree(os.path.join(run.work, "slots"), ignore_errors=True)


# --- f: memory after kills -----------------------------------------------------------------------

MEMORY_SLACK_MIB = 64


def freed(run, which, busy):
    """Kills one process, perhaps while it computes, and waits for the card's memory."""
    before = video_memory()
    with run.pages() as pages:
        server = Server(run, "big", f"-np 2 -c {4 * run.size['rows'] + 4096}", pages)
        stream = None
        try:
            server.ask(some_tokens(70, run.size["rows"]))
            if busy:
                stream = Stream(server)
                stream.start()
                until("A first token", REQUEST_SECONDS, lambda: stream.times or stream.error)
            used = video_memory()
        finally:
            gone = server.kill(which)
            if stream:
                stream.join()
    row = {"killed": ("front", "daemon", "server")[which], "busy": busy, "gone_s": gone, "before_mib": before, "used_mib": used}
    if before is not None:
        began = time.monotonic()
        until("Freeing the card's memory", run.gone, lambda: video_memory() <= before + MEMORY_SLACK_MIB)
        row |= {"freed_s": round(time.monotonic() - began, 2), "after_mib": video_memory()}
    return [row | {"folders_left": len(glob.glob(os.path.join(run.tmp, "kvtier-llama-*")))}]


def step_f(run):
    for i in range(run.size["kills"]):
        for which in range(3):
            run.case(f"{i} {which}", lambda which=which, i=i: freed(run, which, i % 2 == 1))


# --- steps ---------------------------------------------------------------------------------------


def write_model(run, name):
    began = time.monotonic()
    subprocess.run([run.mkmodel, "-llama-cpp", "-o", run.model(name), *run.size[name].split()], check=True, stdout=subprocess.DEVNULL)
    return [{"bytes": os.stat(run.model(name)).st_size, "seconds": round(time.monotonic() - began, 1)}]


def step_models(run):
    for name in MODELS:
        if not os.path.exists(run.model(name)):
            run.done.pop(f"models {name}", None)
        run.case(name, lambda name=name: write_model(run, name))


def read_lines(path):
    """The lines of figures that are whole."""
    lines = []
    with contextlib.suppress(FileNotFoundError):
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
    return lines


def write_whole(path, text):
    """Puts a text in a file's place, so that a kill leaves the old one or the new one."""
    new = f"{path}.{os.getpid()}"
    with open(new, "w", encoding="ascii") as file:
        file.write(text)
    os.rename(new, path)


def report(state, path):
    """Writes how each part of scripts/gpu-llama.sh ended, with its figures."""
    parts = []
    for name in PARTS:
        ended = (Server.text(os.path.join(state, name + ".result")) + "\n\n").split("\n")
        parts.append({"name": name, "result": ended[0] or "waiting", "seconds": int(ended[1] or 0), "reason": ended[2],
                      "figures": read_lines(os.path.join(state, name + ".jsonl"))})
    finished = all(part["result"] in ("ok", "failed", "skipped") for part in parts)
    lines = ",\n".join(json.dumps(part) for part in parts)
    write_whole(path, f'{{"suite": "gpu-llama 1", "finished": {json.dumps(finished)}, "parts": [\n{lines}\n]}}\n')


class Run:
    """The cases of a step: what was done, and where."""

    def __init__(self, arguments):
        self.step, self.figures, self.cpu = arguments.step, os.path.abspath(arguments.figures), arguments.cpu
        self.json = arguments.json
        self.settle, self.gone = arguments.settle, arguments.gone
        self.size = dict(SIZES[arguments.size])
        self.size["rounds"] = arguments.rounds or self.size["rounds"]
        self.work, self.server, self.daemon, self.mkmodel = (os.path.abspath(p) for p in (
            arguments.work, arguments.server, arguments.daemon, arguments.mkmodel))
        self.server_args = arguments.server_args.split()
        self.tmp = os.path.join(self.work, "tmp")
        os.makedirs(self.tmp, exist_ok=True)
        self.done = {f"{self.step} {line['case']}": line for line in read_lines(self.figures) if "failed" not in line}
        self.failed = []

    def model(self, name):
        return os.path.join(self.work, name + ".gguf")

    def earlier(self, step):
        """What has been measured of a step, this one or another."""
        return read_lines(os.path.join(os.path.dirname(self.figures), step + ".jsonl"))

    @contextlib.contextmanager
    def pages(self):
        folder = os.path.join(self.work, "pages")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def case(self, name, measure):
        key = f"{self.step} {name}"
        if key in self.done:
            return
        began = time.monotonic()
        try:
            figures = measure()
            self.done[key] = {"case": name, "seconds": round(time.monotonic() - began, 1), "figures": figures}
            print(json.dumps(self.done[key]), flush=True)
        except (Failed, OSError, KeyError, ValueError, struct.error, http.client.HTTPException, subprocess.SubprocessError) as err:
            self.failed.append({"case": name, "failed": f"{err if isinstance(err, Failed) else repr(err)}"[:500]})
            print(json.dumps(self.failed[-1]), flush=True)
            self.keep_logs(name)
        write_whole(self.figures, "".join(json.dumps(line) + "\n" for line in [*self.done.values(), *self.failed]))
        if self.json:
            report(os.path.dirname(self.figures), self.json)

    def keep_logs(self, name):
        for log in ("server.log", "daemon.log"):
            print(f"--- {log}, {name}\n" + "\n".join(Server.text(os.path.join(self.work, log)).splitlines()[-40:]), flush=True)


STEPS = {"models": step_models, "a": step_a, "b": step_b, "c": step_c, "d": step_d, "e": step_e, "f": step_f}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--figures", required=True, help="STEP.jsonl, beside those of other steps")
    parser.add_argument("--work", required=True, help="folder for models and pages")
    parser.add_argument("--server", required=True, help="the stock llama-server")
    parser.add_argument("--daemon", required=True, help="kvtier, under a name that ends with llama-server")
    parser.add_argument("--mkmodel", default="mkmodel")
    parser.add_argument("--server-args", default="", help="more arguments of every server")
    parser.add_argument("--json", help="result of all steps, which is written after each case")
    parser.add_argument("--rounds", type=int, help="of step a")
    parser.add_argument("--settle", type=float, default=3, help="seconds in which the store does not change: a slot is saved 2 s after an answer")
    parser.add_argument("--gone", type=float, default=30, help="seconds in which a killed server must be gone")
    parser.add_argument("--size", choices=SIZES, default="card")
    parser.add_argument("--cpu", action="store_true", help="a server without a GPU is no mistake")
    run = Run(parser.parse_args())
    try:
        STEPS[run.step](run)
        if run.failed:
            raise Failed("; ".join(f"{line['case']}: {line['failed']}" for line in run.failed))
    except Failed as err:
        sys.exit(str(err))


if __name__ == "__main__":
    if sys.argv[1:2] == ["report"]:
        report(*sys.argv[2:])
    else:
        main()
