# SPDX-License-Identifier: Apache-2.0
"""Write the prompts of docs/train.md's measurements: a domain that the quickstart models never saw, and their old one.

    python benchmarks/train_prompts.py --out DIR
    trtspec train quickstart --prompts DIR/new.jsonl --regression-prompts DIR/old.jsonl --max-tokens 40 --max-minutes 5

The new domain consists of sequences, tables, sentences and short lists. The old one consists of beginnings of the
documents that the models were trained on, from another seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "models"))

from corpus import KINDS, WRITERS

WORDS = ("alpha", "beta", "gamma", "delta", "omega", "north", "south", "river", "stone", "cloud", "maple", "cedar",
         "tiger", "eagle", "lemon", "amber", "coral", "slate")  # fmt: skip
EACH, OLD = 70, 150


def sequence(draw: Random) -> str:
    words = draw.sample(WORDS, 5)
    return " ".join(words * 4) + " " + " ".join(words[:2])


def table(draw: Random) -> str:
    columns = draw.sample(WORDS, 3)
    rows = ["| " + " | ".join(draw.choice(WORDS) for _ in columns) + " |\n" for _ in range(4)]
    return "| " + " | ".join(columns) + " |\n|---|---|---|\n" + "".join(rows)


def sentences(draw: Random) -> str:
    return " ".join(
        f"{draw.choice(('The', 'A', 'Every', 'No'))} {draw.choice(WORDS)} "
        f"{draw.choice(('meets', 'sees', 'likes', 'keeps'))} the {draw.choice(WORDS)}."
        for _ in range(8)
    )


def capitals(draw: Random) -> str:
    return " ".join(draw.choice(WORDS).upper() for _ in range(16))


NEW = {"seq": sequence, "md": table, "english": sentences, "upper": capitals}


def beginning(kind: str, draw: Random) -> str:
    return WRITERS[kind](draw)[: draw.randint(70, 180)]


def write(path: Path, prompts: Iterable[tuple[str, str]]) -> None:
    """Write (kind, prompt) pairs in trtspec's prompt format."""
    records = ({"id": f"{kind}-{n}", "kind": kind, "prompt": text} for n, (kind, text) in enumerate(prompts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    new, old = Random(3), Random(77)
    write(out / "new.jsonl", [(kind, NEW[kind](new)) for kind in NEW for _ in range(EACH)])
    write(out / "old.jsonl", [(kind, beginning(kind, old)) for kind in KINDS * (OLD // len(KINDS))])


if __name__ == "__main__":
    main()
