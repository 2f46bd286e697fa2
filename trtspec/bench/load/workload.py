# SPDX-License-Identifier: Apache-2.0
"""The prompts of a load benchmark in seeded order, the same for both arms, with a digest.

Random prompts of a given length load a server like real text of that length, but they cannot measure acceptance: the
text is unnatural, and models tend to repeat themselves on it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.bench.load.api import LoadSampling
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


@dataclass(frozen=True)
class LoadWorkload:
    """Prompts, generation parameters, the prompts' source, and the seed of their order and arrivals."""

    prompts: Sequence[Prompt]
    wanted: LoadSampling
    source: str
    seed: int = 0

    @cached_property
    def order(self) -> list[Prompt]:
        """Return the prompts shuffled, because files group them by category and a round should mix categories."""
        shuffled = list(self.prompts)
        random.Random(self.seed).shuffle(shuffled)
        return shuffled

    def round_prompts(self, number: int, requests: int) -> list[Prompt]:
        """Return the prompts of a round, cycling through all prompts; a negative number is for warm-up."""
        first = number * requests
        return [self.order[(first + place) % len(self.order)] for place in range(requests)]

    def arrivals_seed(self, number: int) -> int:
        """Return the seed of a round's arrivals: the same for both arms, different in each round."""
        return (self.seed << 20) + number

    @property
    def sha256(self) -> str:
        """Return a digest of the prompts and parameters; runs with equal digests had the same workload."""
        texts = [(prompt.text, [dict(message) for message in prompt.messages]) for prompt in self.prompts]
        said = json.dumps([texts, asdict(self.wanted), self.seed], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(said.encode(errors="replace")).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompts": len(self.prompts),
            "source": self.source,
            "sha256": self.sha256,
            "max_tokens": self.wanted.max_tokens,
            "exact_len": self.wanted.exact_len,
            "temperature": self.wanted.temperature,
            "seed": self.seed,
        }
