# SPDX-License-Identifier: Apache-2.0
"""Write prompts that repeat themselves: a document, and its beginning once more.

    python recipes/prompts/make_repetitive.py recipes/models/quickstart-target recipes/prompts/repetitive.jsonl

That is what editing a file or quoting a log looks like to a model, and what prompt lookup is for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
from corpus import KINDS, WRITERS

SEED, COUNT, WHOLE = 3, 24, 150


def main() -> None:
    model, out = map(Path, sys.argv[1:])
    tokenizer, rng = Tokenizer.from_file(str(model / "tokenizer.json")), Random(SEED)
    lines = []
    for number in range(COUNT):
        kind = KINDS[number % len(KINDS)]
        ids = tokenizer.encode(WRITERS[kind](rng)).ids[:WHOLE]
        text = tokenizer.decode(ids + ids[: rng.randint(20, 40)])
        lines.append(json.dumps({"id": f"repetitive-{kind}-{number:02d}", "kind": "repetitive", "prompt": text}))
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
