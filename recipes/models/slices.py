# SPDX-License-Identifier: Apache-2.0
"""Prompts from anywhere in documents like those that the quickstart's pair was trained on, to train a draft on.

    python recipes/models/slices.py --but recipes/prompts/quickstart.jsonl > slices.jsonl

No slice begins like a prompt of `--but`, because those prompts evaluate the draft.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from corpus import WRITERS

KINDS, EACH, SEED = ("log", "json", "code"), 200, 77
LENGTHS = 70, 180  # characters
LEAST, ALIKE = 60, 60  # characters of a prompt, and of a common beginning of two, without blanks


def squeezed(text: str) -> str:
    return "".join(text.split())


def some(kind: str, draw: Random) -> str:
    """Return a piece of a new document."""
    text = WRITERS[kind](draw)
    length = draw.randint(*LENGTHS)
    first = draw.randint(0, max(0, len(text) - length))
    return text[first : first + length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--but", type=Path, required=True)
    judging = [squeezed(json.loads(line)["prompt"]) for line in parser.parse_args().but.read_text().splitlines()]
    beginnings, draw = {text[:ALIKE] for text in judging}, Random(SEED)
    for number, kind in enumerate(KINDS * EACH):
        prompt = ""
        while len(prompt) < LEAST or squeezed(prompt)[:ALIKE] in beginnings:
            prompt = some(kind, draw)
        print(json.dumps({"id": f"{kind}-{number}", "kind": kind, "prompt": prompt}))


if __name__ == "__main__":
    main()
