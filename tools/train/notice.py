"""Writes NOTICE: the sources of the training text, their licences, and the licence of the evaluation text."""

import argparse
import json
import pathlib

import corpus

HEAD = """trained.gguf was trained by this project (tools/train) and has this project's licence.
The text below was its training text, from {total:.1f} MB in {documents:,} documents. A module
is named with the version that was read; its licence is in the module's own LICENSE file.

heldout.txt begins with a table of this project. The rest is the text of
{held_out} of the Go distribution, whose licence is at the end of this file.

"""


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    listing = json.loads((a.data / "sources.json").read_text())
    text = HEAD.format(total=sum(s["bytes"] for s in listing) / 1e6, documents=sum(s["documents"] for s in listing), held_out=corpus.HELD_OUT)
    width = max(len(s["source"]) for s in listing)
    for s in listing:
        text += f"{s['source']:{width}}  {s['bytes']:>10,} bytes  {s['licence']}\n"
    licence = (corpus.go_env("GOROOT") / "LICENSE").read_text()
    (a.out / "NOTICE").write_text(f"{text}\nGo\n\n{licence}")


if __name__ == "__main__":
    main()
