"""Rows of training tokens: slices of the corpus, some with a table and questions about it.

A look-up row has `word = value` lines early and asks for some of them later, up to its very
end. A copy row has a passage of random words twice. What cannot be known (the table itself,
the first passage) has weight 0; answers have weight ANSWER_WEIGHT.
"""

import numpy as np

ANSWER_WEIGHT = 4.0
LOOKUP_SHARE, COPY_SHARE = 0.25, 0.05
TABLE_LINES = (2, 24)
QUESTIONS = (2, 8)
HEADER = "\n\nSettings:\n"
VALUE_WORDS = (1, 3)


class Rows:
    def __init__(self, stream, tokenizer, words):
        self.stream, self.tokenizer = stream, tokenizer
        self.words = [self.encode(" " + w) for w in words]
        self.header = self.encode(HEADER)
        self.equals, self.newline = self.encode(" ="), self.encode("\n")

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def batch(self, rng, rows, context):
        """Tokens (rows, context+1) and weights (rows, context) of the tokens after the first."""
        tokens = np.empty((rows, context + 1), np.int32)
        weights = np.ones((rows, context + 1), np.float32)
        for r in range(rows):
            start = rng.integers(len(self.stream) - context - 1)
            tokens[r] = self.stream[start:start + context + 1]
            draw = rng.random()
            if draw < LOOKUP_SHARE:
                self.lookup(rng, tokens[r], weights[r])
            elif draw < LOOKUP_SHARE + COPY_SHARE:
                self.copy(rng, tokens[r], weights[r])
        return tokens, weights[:, 1:]

    def table(self, rng, count):
        """Lines of tokens and, of each, the number of tokens before its value."""
        chosen = rng.choice(len(self.words), count, replace=False)
        lines = []
        for w in chosen:
            name = self.words[w]
            value = [t for v in rng.integers(len(self.words), size=rng.integers(*VALUE_WORDS)) for t in self.words[v]]
            lines.append((name + self.equals + value + self.newline, len(name) + len(self.equals)))
        return lines

    def lookup(self, rng, tokens, weights):
        size = len(tokens)
        count = int(rng.integers(TABLE_LINES[0], min(TABLE_LINES[1], size // 24) + 1))
        lines = self.table(rng, count)
        text = self.header + [t for line, _ in lines for t in line]
        asked = [lines[i] for i in rng.integers(count, size=rng.integers(*QUESTIONS))]
        questions = sum(len(line) for line, _ in asked)
        free = size - len(text) - questions
        if free < 2:
            return
        # The last question ends the row half of the time, so that distances up to the context occur.
        cuts = np.sort(rng.integers(free + 1, size=len(asked) + 1))
        if rng.random() < 0.5:
            cuts[0], cuts[-1] = int(cuts[0] * rng.random() ** 2), free
        prose, out, marks = tokens[:free].copy(), [], []
        last = 0
        for i, cut in enumerate(cuts):
            piece = prose[last:cut]
            out.extend(piece), marks.extend([1.0] * len(piece))
            last = cut
            if i == 0:
                out.extend(text), marks.extend([0.0] * len(text))
            else:
                line, before = asked[i - 1]
                out.extend(line), marks.extend([0.0] * before + [ANSWER_WEIGHT] * (len(line) - before))
        out.extend(prose[last:]), marks.extend([1.0] * (free - last))
        tokens[:], weights[:] = out, marks

    def copy(self, rng, tokens, weights):
        size = len(tokens)
        passage = []
        length = int(rng.integers(8, max(9, size // 4)))
        while len(passage) < length:
            passage += self.words[rng.integers(len(self.words))]
        first = int(rng.integers(0, size - 2 * len(passage)))
        second = int(rng.integers(first + len(passage), size - len(passage) + 1))
        tokens[first:first + len(passage)] = passage
        weights[first:first + len(passage)] = 0
        tokens[second:second + len(passage)] = passage
        weights[second] = 0
