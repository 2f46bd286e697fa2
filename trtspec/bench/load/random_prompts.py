# SPDX-License-Identifier: Apache-2.0
"""Prompts of a given length, drawn from a tokenizer's vocabulary.

They load a server as text of that length does. What a draft is worth they cannot say: nobody writes such text, and
models that are asked it repeat themselves.
"""

from __future__ import annotations

import random
from pathlib import Path

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.prompts.prompt import Prompt

TRIES = 16


def random_prompts(tokenizer: Path, tokens: int, count: int, seed: int) -> list[Prompt]:
    """Return prompts of so many tokens, special ones included; equal seeds give equal prompts.

    Where a tokenizer joins what was drawn, a text is drawn on or cut; the nearest of some tries is taken.
    """
    opened, draws = Tokenizer(tokenizer), random.Random(seed)
    words = sorted(set(range(opened.vocab_size)) - opened.fragments - opened.silent)
    return [Prompt(_text(opened, words, tokens, draws), f"random-{number}", "random") for number in range(count)]


def _text(tokenizer: Tokenizer, words: list[int], tokens: int, draws: random.Random) -> str:
    ids = draws.choices(words, k=tokens)
    best = (tokens, "")
    for _ in range(TRIES):
        text = tokenizer.decode(ids)
        missing = tokens - len(tokenizer.encode(text))
        best = min(best, (abs(missing), text))
        if not missing:
            break
        ids = [*ids, *draws.choices(words, k=missing)] if missing > 0 else ids[:missing] or ids[:1]
    return best[1]
