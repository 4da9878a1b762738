"""Writes the evaluation text, a table and prose that training never saw, and questions about it."""

import argparse
import json
import pathlib

import numpy as np

LINES, QUESTIONS, SEED = 16, 12, 23


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    rng = np.random.default_rng(SEED)
    words = (a.data / "words.txt").read_text().split()
    names = [words[i] for i in rng.choice(len(words), LINES, replace=False)]
    values = [words[i] for i in rng.integers(len(words), size=LINES)]
    table = "Settings:\n" + "".join(f" {n} = {v}\n" for n, v in zip(names, values))
    (a.out / "heldout.txt").write_text(table + "\n" + (a.data / "heldout.txt").read_text())
    questions = [{"question": f"\n\n {names[i]} =", "answer": values[i]} for i in rng.choice(LINES, QUESTIONS, replace=False)]
    (a.out / "questions.json").write_text(json.dumps(questions, indent=1) + "\n")


if __name__ == "__main__":
    main()
