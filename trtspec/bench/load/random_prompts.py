# SPDX-License-Identifier: Apache-2.0
"""Generate prompts of a given length from a tokenizer's vocabulary.

They load a server like real text of that length, but they cannot measure acceptance: the text is unnatural, and models
tend to repeat themselves on it.
"""

from __future__ import annotations

import random
from pathlib import Path

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.prompts.prompt import Prompt

TRIES = 16


def random_prompts(tokenizer: Path, tokens: int, count: int, seed: int) -> list[Prompt]:
    """Return prompts of `tokens` tokens, special ones included; equal seeds give equal prompts.

    If the tokenizer merges drawn tokens, the text is extended or cut; the closest of several attempts is used.
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
