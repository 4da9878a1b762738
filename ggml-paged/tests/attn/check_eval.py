#!/usr/bin/env python3
"""Checks paged_attn_eval from outside.

    check_eval.py PAGED_ATTN_EVAL [SPILL_DIR]

Builds cases, computes what attention should be in Python's doubles from the definition
in paged_attn.h, and compares, with every backend that is built in. Then sends malformed
input, which must be refused with a sentence and exit status 2. Needs nothing but Python
3.6 or later.
"""
import json
import math
import random
import struct
import subprocess
import sys

# The library promises 1e-4 * max|V|, and on tensor cores 1e-3.
BOUND = {"cpu": 1e-4, "emulated": 1e-4, "tensor": 1e-3, "cuda": 1e-3}
NAN_F16 = b"\x00\x7e"
TIMEOUT_S = 300


def half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def random_row(rng, kind, n, mean):
    """A row of n stored elements: its bytes and its values."""
    if kind == "f16":
        values = [half(rng.gauss(mean, 1)) for _ in range(n)]
        return struct.pack("<%de" % n, *values), values
    data, values = b"", []
    for _ in range(n // 32):
        d = half(rng.uniform(0.5, 1.5) / (64 if kind == "q8_0" else 4))
        data += struct.pack("<e", d)
        if kind == "q8_0":
            q = [max(-128, min(127, round(rng.gauss(mean, 1) / d))) for _ in range(32)]
            data += struct.pack("<32b", *q)
        else:
            q = [max(-8, min(7, round(rng.gauss(mean, 1) / d))) for _ in range(32)]
            data += bytes((q[i] + 8) | (q[i + 16] + 8) << 4 for i in range(16))
        values += [d * x for x in q]
    return data, values


def poison_row(kind, n):
    """What an unused cell may hold: NaN, or for blocks a NaN scale."""
    if kind == "f16":
        return NAN_F16 * n
    return (NAN_F16 + b"\x7f" * (32 if kind == "q8_0" else 16)) * (n // 32)


class Case:
    """A header, arrays, and the values that they stand for.

    rare: no model has heads of such sizes, and backends with a kernel per size may refuse it.
    """

    def __init__(self, name, rng, mean=0.0, q_pos=None, q_seq=None, pos=None, seqs=None, amplify=1.0, rare=False,
                 **fields):
        self.name, self.rare = name, rare
        h = dict(tokens=97, n_q=3, heads=4, kv_heads=2, dk=64, dv=64, type_k="f16", type_v="f16", scale=0.125,
                 softcap=0, alibi=0, causal=True, window=0, chunk=0, sinks=False, page_tokens=16, ram_pages=64,
                 backend="cpu")
        assert not set(fields) - set(h), fields
        h.update(fields)
        self.header = h
        t, n = h["tokens"], h["n_q"]
        self.pos = list(range(t)) if pos is None else pos
        self.seqs = [1] * t if seqs is None else seqs
        self.q_pos = list(range(t - n, t)) if q_pos is None else q_pos
        self.q_seq = [0] * n if q_seq is None else q_seq
        self.q = [[[struct.unpack("<f", struct.pack("<f", rng.gauss(0, amplify)))[0] for _ in range(h["dk"])]
                   for _ in range(h["heads"])] for _ in range(n)]
        self.k, self.k_bytes = self.rows(rng, h["type_k"], h["dk"], 0.0)
        self.v, self.v_bytes = self.rows(rng, h["type_v"], h["dv"], mean)
        self.sinks = [struct.unpack("<f", struct.pack("<f", rng.gauss(0, 2)))[0] for _ in range(h["heads"])]

    def rows(self, rng, kind, n, mean):
        values, data = [], []
        for c in range(self.header["tokens"]):
            cell = []
            for _ in range(self.header["kv_heads"]):
                raw, row = random_row(rng, kind, n, mean)
                cell.append(row)
                data.append(poison_row(kind, n) if self.seqs[c] == 0 else raw)
            values.append(cell)
        return values, b"".join(data)

    def input(self, **changes):
        h = dict(self.header, **changes)
        n, t = len(self.q_pos), len(self.pos)
        flat = [x for query in self.q for head in query for x in head]
        return (json.dumps(h).encode() + b"\n" + struct.pack("<%df" % len(flat), *flat) + self.k_bytes + self.v_bytes +
                struct.pack("<%di" % n, *self.q_pos) + struct.pack("<%di" % n, *self.q_seq) +
                struct.pack("<%di" % t, *self.pos) + struct.pack("<%dQ" % t, *self.seqs) +
                (struct.pack("<%df" % len(self.sinks), *self.sinks) if h["sinks"] else b""))

    def visible(self, i, h):
        """The cells that query i sees."""
        at, out = self.q_pos[i], []
        for c, p in enumerate(self.pos):
            if not self.seqs[c] >> self.q_seq[i] & 1:
                continue
            if h["causal"] and p > at:
                continue
            if h["chunk"] and p < at - at % h["chunk"]:
                continue
            if h["window"] and p < at - h["window"]:
                continue
            out.append(c)
        return out

    def reference(self, **changes):
        h = dict(self.header, **changes)
        group = h["heads"] // h["kv_heads"]
        out = []
        for i in range(h["n_q"]):
            cells = self.visible(i, h)
            for head in range(h["heads"]):
                out += self.attend(i, head, head // group, cells, h)
        return out

    def attend(self, i, head, kv_head, cells, h):
        q = self.q[i][head]
        scores = []
        for c in cells:
            s = h["scale"] * sum(a * b for a, b in zip(q, self.k[c][kv_head]))
            if h["softcap"]:
                s = h["softcap"] * math.tanh(s / h["softcap"])
            if h["alibi"] and self.pos[c] <= self.q_pos[i]:
                s += slope(head, h["heads"], h["alibi"]) * (self.pos[c] - self.q_pos[i])
            scores.append(s)
        m_max = max(scores + [self.sinks[head]] if h["sinks"] else scores, default=0.0)
        weights = [math.exp(s - m_max) for s in scores]
        total = math.fsum(weights) + (math.exp(self.sinks[head] - m_max) if h["sinks"] else 0.0)
        if not cells:
            return [0.0] * h["dv"]
        acc = [0.0] * h["dv"]
        for w, c in zip(weights, cells):
            for d, x in enumerate(self.v[c][kv_head]):
                acc[d] += w * x
        return [x / total for x in acc]

    def largest_v(self):
        return max([abs(x) for cell in self.v for row in cell for x in row], default=1.0)


def slope(head, heads, max_bias):
    """ALiBi's slope of a head, for any number of heads (Press et al. 2022, section 3)."""
    n = 1 << (heads.bit_length() - 1)
    if head < n:
        return 2.0 ** (-max_bias / n * (head + 1))
    return 2.0 ** (-max_bias / 2 / n * (2 * (head - n) + 1))


def holes(rng, tokens, sequences):
    """Cells in scattered order, a fifth unused, the rest in one sequence or two."""
    pos = list(range(tokens))
    rng.shuffle(pos)
    seqs = []
    for _ in range(tokens):
        first = rng.randrange(sequences)
        pick = rng.random()
        seqs.append(0 if pick < 0.2 else 1 << first if pick < 0.8 else 1 << first | 1 << (first + 1) % sequences)
    return pos, seqs


def make_cases():
    rng = random.Random(20240607)
    pos, seqs = holes(rng, 150, 3)
    yield Case("one query", rng, n_q=1), ()
    yield Case("no cells", rng, tokens=0, n_q=2, q_pos=[0, 5]), ()
    yield Case("one cell", rng, tokens=1, n_q=1), ()
    yield Case("a token past a page", rng, tokens=17, n_q=17, heads=2), ("causal",)
    yield Case("as many heads as kv heads", rng, kv_heads=4), ()
    yield Case("5 heads per kv head", rng, heads=10, kv_heads=2), ()
    yield Case("7 heads, 1 kv head", rng, heads=7, kv_heads=1, n_q=7), ()
    yield Case("dk 96, dv 160", rng, dk=96, dv=160, rare=True), ()
    yield Case("dk 80", rng, dk=80, dv=80), ()
    yield Case("q8_0", rng, type_k="q8_0", type_v="q8_0", dk=128, dv=128), ()
    yield Case("q4_0", rng, type_k="q4_0", type_v="q4_0"), ()
    yield Case("K of q4_0, V of q8_0", rng, type_k="q4_0", type_v="q8_0"), ()
    yield Case("q8_0 and q4_0", rng, type_k="q8_0", type_v="q4_0", dk=32, rare=True), ()
    yield Case("f16 and q8_0, V of mean 1", rng, mean=1.0, type_v="q8_0", n_q=1), ()
    yield Case("sharp scores", rng, amplify=12.0), ()
    yield Case("window", rng, window=20, n_q=5), ("window",)
    yield Case("window of 1", rng, window=1, n_q=4), ("window",)
    yield Case("chunk", rng, chunk=32, n_q=5, tokens=100), ("chunk",)
    yield Case("exceptions", rng, causal=False, q_pos=[10, 50, 90]), ("causal",)
    yield Case("softcap", rng, softcap=1.5, amplify=4.0), ("softcap",)
    yield Case("alibi", rng, alibi=8, heads=6, kv_heads=2), ("alibi",)
    yield Case("alibi and exceptions", rng, alibi=8, causal=False, q_pos=[5, 50, 60]), ("alibi", "causal")
    yield Case("sinks", rng, sinks=True), ("sinks",)
    yield Case("everything", rng, sinks=True, softcap=3, alibi=4, window=60, tokens=150, n_q=6, heads=8, type_k="q8_0",
               pos=pos, seqs=seqs, q_pos=[149, 100, 140, 80, 120, 149], q_seq=[0, 1, 2, 0, 1, 2]), \
        ("sinks", "softcap", "alibi", "window")
    yield Case("sequences with holes", rng, tokens=150, n_q=6, pos=pos, seqs=seqs, q_pos=[149, 100, 140, 3, 120, 149],
               q_seq=[0, 1, 2, 0, 1, 2]), ("causal",)
    yield Case("a query that sees nothing", rng, tokens=50, q_pos=[49, 49, 49], q_seq=[0, 5, 0]), ()
    yield Case("a query that sees nothing but a sink", rng, tokens=50, q_pos=[49, -1, 49], sinks=True), ()
    yield Case("sequence 63", rng, tokens=40, seqs=[1 << 63 if c % 3 else 0 for c in range(40)], q_seq=[63] * 3), ()
    ends = [-2 ** 31, 2 ** 31 - 1, 0, 2 ** 31 - 5, -2 ** 31 + 3] * 8
    yield Case("positions at the ends of their range", rng, tokens=40, pos=ends, q_pos=[2 ** 31 - 1, -2 ** 31, -2 ** 31 + 9],
               window=7), ("window",)
    yield Case("alibi over all positions", rng, tokens=40, pos=ends, q_pos=[2 ** 31 - 1, -2 ** 31, 4], alibi=8), ("alibi",)
    yield Case("the largest chunk and window", rng, chunk=2 ** 31 - 1, window=2 ** 31 - 1), ()
    yield Case("one page in memory", rng, tokens=200, ram_pages=1, n_q=2), ()
    yield Case("two of seven pages in memory", rng, tokens=200, page_tokens=32, ram_pages=2, n_q=70, heads=2), ("causal",)


def run(program, data, arguments=()):
    done = subprocess.run([program, *arguments], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def worst(a, b):
    return max([abs(x - y) if x == x else math.inf for x, y in zip(a, b)], default=0.0)


def check_case(program, spill, backend, case, features):
    """None, or what is wrong."""
    want = case.reference()
    bound = BOUND[backend] * case.largest_v()
    # A case that would pass without the feature it is named for proves nothing.
    for feature in features:
        without = not case.header["causal"] if feature == "causal" else 0
        if worst(want, case.reference(**{feature: without})) < 2 * bound:
            return "the case is the same without %s" % feature
    status, out, err = run(program, case.input(backend=backend), ["--spill", spill])
    if status == 2 and case.rare and backend != "cpu" and "cannot compute this case" in err:
        return None
    if status != 0:
        return "exit status %d: %s" % (status, err.strip())
    if len(out) != 4 * len(want):
        return "%d bytes came back, %d were expected" % (len(out), 4 * len(want))
    error = worst(struct.unpack("<%df" % len(want), out), want)
    if error > bound:
        return "the largest error is %.3g, %.3g is allowed" % (error, bound)
    return None


def malformed():
    """Inputs, each with a word that the answer must have."""
    rng = random.Random(7)
    case = Case("base", rng, tokens=20, n_q=2, heads=2, kv_heads=1, sinks=True)
    good = case.input()
    end = good.index(b"\n")
    yield "nothing", b"", "empty"
    yield "no newline", good[:end], "newline"
    yield "no JSON", b"tokens 4\n" + good[end + 1:], "JSON"
    yield "an array", b"[1, 2]\n" + good[end + 1:], "JSON"
    yield "cut JSON", good[:end - 1] + good[end:], "JSON"
    yield "an endless first line", b"{" + b" " * 200000, "longer"
    yield "an unknown field", case.input(token=3), '"token"'
    for field in case.header:
        rest = {name: value for name, value in case.header.items() if name != field}
        yield "no " + field, json.dumps(rest).encode() + good[end:], '"%s"' % field
    for field in ("tokens", "n_q", "heads", "kv_heads", "dk", "dv", "window", "chunk", "page_tokens", "ram_pages"):
        for bad in (-1, 1.5, "7", None, 2 ** 40, 2 ** 63, 2 ** 64 - 1, 10 ** 30, True):
            yield "%s is %r" % (field, bad), case.input(**{field: bad}), '"%s"' % field
    for field in ("n_q", "heads", "kv_heads", "dk", "dv", "page_tokens", "ram_pages"):
        yield field + " is 0", case.input(**{field: 0}), '"%s"' % field
    for field in ("scale", "softcap", "alibi"):
        for bad in ("1", None, 1e300, [], True):
            yield "%s is %r" % (field, bad), case.input(**{field: bad}), '"%s"' % field
    for field in ("softcap", "alibi"):
        yield field + " is negative", case.input(**{field: -1}), "negative"
    yield "scale is NaN", good.replace(b'"scale": 0.125', b'"scale": NaN'), "JSON"
    for field in ("causal", "sinks"):
        yield field + " is 1", case.input(**{field: 1}), '"%s"' % field
    for field in ("type_k", "type_v"):
        for bad in ("f32", "F16", "", 1):
            yield "%s is %r" % (field, bad), case.input(**{field: bad}), '"%s"' % field
    yield "an unknown backend", case.input(backend="metal"), "metal"
    yield "a backend that is a number", case.input(backend=2), '"backend"'
    yield "heads that do not divide", case.input(kv_heads=4), "multiple"
    yield "rows that do not fill blocks", case.input(type_k="q8_0", dk=48), "blocks"
    yield "a page that is no power of two", case.input(page_tokens=48), "power of two"
    yield "an absurd whole", case.input(tokens=2 ** 24, kv_heads=1024, heads=1024, dk=4096, dv=4096), "at most"
    yield "more tokens than there are", case.input(tokens=4000000), "ends within"
    yield "more queries than there are", case.input(n_q=60000), "ends within"
    yield "fewer tokens than there are", case.input(tokens=19), "after the last array"
    yield "a byte too many", good + b"\0", "after the last array"
    yield "only the first line", good[:end + 1], "ends within"
    yield "a byte too few", good[:-1], "ends within"
    yield "no sinks", good[:-8], "sinks"
    case.q_seq[1] = 64
    yield "a sequence of 64", case.input(), "sequence"
    case.q_seq[1] = -1
    yield "a sequence of -1", case.input(), "sequence"


def check_refused(status, out, err, word):
    if status != 2:
        return "exit status %d instead of 2: %s" % (status, err.strip())
    if out:
        return "%d bytes were written to standard output" % len(out)
    if not err.startswith("paged_attn_eval: ") or err.count("\n") != 1 or not err.endswith(".\n"):
        return "not one sentence: %r" % err
    if word not in err:
        return "the sentence does not say %s: %s" % (word, err.strip())
    return None


def check_arguments(program, spill, good):
    """Arguments, each with a word that the answer must have; then a file as input."""
    for arguments, word in ((["--threads"], "--threads"), (["--threads", "0"], "--threads"), (["--threads", "x"], "--threads"),
                            (["--speed", "9"], "--speed"), (["a", "b"], "Two files"), (["/nonexistent/case"], "/nonexistent/case"),
                            (["--spill", "/nonexistent"], "/nonexistent")):
        yield " ".join(arguments), check_refused(*run(program, good, arguments), word)
    status, out, _ = run(program, good, ["--spill", spill, "--threads", "1"])
    again = run(program, good, ["--spill", spill, "--threads", "5", "/dev/stdin"])
    yield "a file, another number of threads", None if (status, out) == (0, again[1]) else "other bytes, or exit status %d" % status


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("Usage: check_eval.py PAGED_ATTN_EVAL [SPILL_DIR]")
    program, spill = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else "."
    n, failed = 0, 0

    def report(name, wrong):
        nonlocal n, failed
        n += 1
        if wrong:
            failed += 1
            print("FAILED %s: %s" % (name, wrong))

    for backend in BOUND:
        probe = Case("probe", random.Random(1), tokens=1, n_q=1, backend=backend)
        if backend != "cpu" and "was not built into this program" in run(program, probe.input())[2]:
            print("%s: not built in" % backend)
            continue
        for case, features in make_cases():
            report("%s: %s" % (backend, case.name), check_case(program, spill, backend, case, features))
    for name, data, word in malformed():
        report("malformed: " + name, check_refused(*run(program, data), word))
    good = Case("arguments", random.Random(3), tokens=40, ram_pages=1).input()
    for name, wrong in check_arguments(program, spill, good):
        report("arguments: " + name, wrong)
    print("%d checks, %d failed" % (n, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
