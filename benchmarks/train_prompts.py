# SPDX-License-Identifier: Apache-2.0
"""Prompts of a domain that the quickstart models never saw: code and prose of Python's own standard library.

    python benchmarks/train_prompts.py --out stdlib.jsonl
    trtspec train quickstart --prompts stdlib.jsonl --keep recipes/prompts/quickstart.jsonl --minutes 10

A module gives a piece of its code and a piece of a docstring; both are of one document.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

LEAST, MOST = 100, 240  # characters of a prompt


def modules() -> list[Path]:
    """Return the modules of the standard library, tests left out."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in sorted(root.rglob("*.py")) if not {"site-packages", "test", "tests"} & {*path.parts})
    return [path for path in paths if 2000 < path.stat().st_size < 400_000]


def docstrings(source: str) -> list[str]:
    """Return the longer docstrings of a module."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [text for text in found if text and len(text) > MOST]


def piece(text: str, draw: Random) -> str:
    """Return some lines of a text, cut off somewhere."""
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")]
    start = draw.choice([place for place in starts if place + MOST < len(text)] or [0])
    return text[start : start + draw.randint(LEAST, MOST)]


def prompts(draw: Random) -> Iterator[dict[str, str]]:
    for path in modules():
        try:
            source = path.read_text(encoding="utf-8")
            texts = {"python": source, "prose": draw.choice(docstrings(source) or [""])}
        except (SyntaxError, ValueError):
            continue
        for kind, text in texts.items():
            if len(text) > MOST:
                name = f"{kind}-{path.stem}"
                yield {"id": name, "kind": kind, "document": str(path), "prompt": piece(text, draw)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=640)
    arguments = parser.parse_args()
    draw = Random(0)
    found = list(prompts(draw))
    chosen = draw.sample(found, min(arguments.count, len(found)))
    arguments.out.write_text("".join(json.dumps(prompt) + "\n" for prompt in chosen))


if __name__ == "__main__":
    main()
