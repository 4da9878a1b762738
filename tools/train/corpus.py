"""Collects training text of this machine, in the same order each time, and lists its sources.

Every source may be redistributed: Go's own tree and Go modules under MIT, BSD, ISC or Apache
licences, this project's documents and source, and the texts of common licences.
"""

import argparse
import hashlib
import html
import json
import pathlib
import re
import subprocess

HELD_OUT = "doc/go_mem.html"  # of GOROOT; evaluation only
PARAGRAPH_CHARS_MIN = 40
SKIPPED_FOLDERS = {"testdata", "vendor", "node_modules", "build", ".git"}
CODE_SHARE = 4  # every fourth Go file is taken whole, the others give their comments alone
FILE_BYTES_MAX = 400_000
TABLES = ("github.com/go-playground/locales", "github.com/grafana/grafana-foundation-sdk")  # data and generated code

# A licence is known by a sentence of it. A file may have several.
LICENCES = [
    ("Apache-2.0", "Apache License"),
    ("MIT", "Permission is hereby granted, free of charge"),
    ("BSD", "Redistribution and use in source and binary forms"),
    ("ISC", "Permission to use, copy, modify, and/or distribute this software"),
]
COPYLEFT = re.compile(r"GNU (Lesser |Affero )?General Public|Mozilla Public")


def go_env(name):
    return pathlib.Path(subprocess.run(["go", "env", name], capture_output=True, text=True, check=True).stdout.strip())


def licence_of(root):
    """Names the licences in a module's file, None where one is no permissive licence or none is known."""
    for file in sorted(root.iterdir()):
        if file.is_file() and re.match(r"(?i)licen[cs]e|copying", file.name):
            text = file.read_text(errors="ignore")
            if COPYLEFT.search(text):
                return None
            text = re.sub(r"\s+", " ", text)
            if found := [name for name, sentence in LICENCES if sentence in text]:
                return ", ".join(found)
    return None


def modules(cache):
    """Yields each module of the cache with a permissive licence, one version of each path."""
    seen = set()
    found = [p for depth in range(1, 5) for p in cache.glob("/".join(["*"] * depth)) if "@" in p.name]
    for root in sorted(found):
        relative = root.relative_to(cache)
        path = str(relative).rsplit("@", 1)[0]
        if relative.parts[0] == "cache" or "@" in str(relative.parent) or path.startswith("golang.org/toolchain") or path in seen or path.startswith(TABLES):
            continue
        licence = licence_of(root)
        if licence:
            seen.add(path)
            yield str(relative), licence, root


def files(root, tracked):
    if tracked:  # a git work tree: tracked files alone
        names = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
        paths = sorted(root / n for n in names if n)
    else:
        paths = sorted(root.rglob("*"))
    for path in paths:
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts) or path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_size <= FILE_BYTES_MAX:
            yield relative, path


def comments(source):
    """The comments of a Go file as paragraphs, each with the declaration that follows."""
    out, block = [], []
    for line in source.split("\n"):
        stripped = line.strip()
        if stripped.startswith("//") and not re.match(r"//(go:|nolint|export|line )", stripped):
            block.append(re.sub(r"^// ?", "", stripped))
            continue
        if sum(map(len, block)) >= PARAGRAPH_CHARS_MIN:
            follows = [line.rstrip(" {")] if re.match(r"(func|type|const|var|package) ", line) else []
            out.append("\n".join(block + follows))
        block = []
    return out


def html_text(source):
    source = re.sub(r"(?s)<!--.*?-->|<(script|style).*?</\1>", "", source)
    return html.unescape(re.sub(r"<[^>]*>", "", source))


def paragraphs(relative, path):
    text = path.read_text(errors="ignore").replace("\r\n", "\n")
    name = path.name
    if path.suffix == ".go":
        if name.endswith(".pb.go") or "DO NOT EDIT" in text[:2000] or "// Code generated" in text[:4000]:
            return []
        pick = int(hashlib.sha256(str(relative).encode()).hexdigest(), 16)
        return [text] if pick % CODE_SHARE == 0 and not name.endswith("_test.go") else comments(text)
    if path.suffix == ".html":
        return html_text(text).split("\n\n")
    if path.suffix in {".md", ".txt", ".rst"} or name in {"LICENSE", "README"}:
        return text.split("\n\n")
    return []


def key(paragraph):
    return hashlib.sha256(re.sub(r"\s+", " ", paragraph).strip().encode()).digest()


def sources(project):
    goroot = go_env("GOROOT")
    yield "common licences", "each its own text, verbatim copying allowed", pathlib.Path("/usr/share/common-licenses"), False
    yield "Go documentation and source", "BSD-3-Clause", goroot, False
    yield "this project", "the project's own", project, True
    for name, licence, root in modules(go_env("GOMODCACHE")):
        yield name, licence, root, False


def collect(project):
    goroot = go_env("GOROOT")
    held_out = html_text((goroot / HELD_OUT).read_text())
    seen = {key(p) for p in held_out.split("\n\n")}
    documents, listing = [], []
    for name, licence, root, tracked in sources(project):
        count = size = 0
        for relative, path in files(root, tracked):
            if name == "common licences":
                pieces = path.read_text(errors="ignore").split("\n\n")
            elif path == goroot / HELD_OUT:
                continue
            else:
                pieces = paragraphs(relative, path)
            fresh = []
            for piece in pieces:
                if "\0" in piece or len(piece.strip()) < PARAGRAPH_CHARS_MIN and len(pieces) == 1:
                    continue
                if key(piece) not in seen:
                    seen.add(key(piece))
                    fresh.append(piece.strip("\n"))
            text = re.sub(r"\n{3,}", "\n\n", "\n\n".join(fresh)).strip()
            if len(text) >= PARAGRAPH_CHARS_MIN:
                documents.append(text)
                count, size = count + 1, size + len(text.encode())
        if count:
            listing.append({"source": name, "licence": licence, "documents": count, "bytes": size})
    return documents, listing, held_out


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--project", type=pathlib.Path, required=True, help="root of this repository")
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    documents, listing, held_out = collect(a.project)
    (a.out / "corpus.json").write_text(json.dumps(documents))
    (a.out / "sources.json").write_text(json.dumps(listing, indent=1))
    (a.out / "heldout.txt").write_text(re.sub(r"\n{3,}", "\n\n", held_out).strip() + "\n")
    total = sum(s["bytes"] for s in listing)
    print(f"{len(documents)} documents, {total / 1e6:.1f} MB of {len(listing)} sources")


if __name__ == "__main__":
    main()
