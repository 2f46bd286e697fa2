# SPDX-License-Identifier: Apache-2.0
"""Mixed requests on the quickstart's prompts, the same in every run."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from benchmarks.soak.asking import Ask
from trtspec.core.paths import recipes_dir

LENGTHS = (8, 24, 48, 96, 160)
STOPS = ((), (), ("\n\n",), ("}", "return"))


def prompts() -> list[str]:
    """Return the quickstart's prompts."""
    lines = (recipes_dir() / "prompts" / "quickstart.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def mixed(count: int, seed: int) -> list[Ask]:
    """Return requests of every kind: greedy, sampled with a seed, with penalties, each with and without stop texts."""
    chance = random.Random(f"mixed {seed}")
    return [_ask(number, text, chance) for number, text in zip(range(count), _again(prompts()), strict=False)]


def greedy(count: int, seed: int, draft_len: int, lengths: Sequence[int] = LENGTHS[1:]) -> list[Ask]:
    """Return requests whose text does not depend on the drafter; one in four lets the server choose the length."""
    chance = random.Random(f"greedy {seed}")
    return [
        Ask(
            f"greedy-{number}",
            text,
            chance.choice(lengths),
            stop=chance.choice(STOPS),
            draft_len=None if number % 4 == 3 else draft_len,
        )
        for number, text in zip(range(count), _again(prompts()), strict=False)
    ]


def _ask(number: int, text: str, chance: random.Random) -> Ask:
    max_tokens, stop = chance.choice(LENGTHS), chance.choice(STOPS)
    kind = ("greedy", "sampled", "penalized", "sampled-penalized")[number % 4]
    sampled = "sampled" in kind
    penalized = "penalized" in kind
    return Ask(
        f"{kind}-{number}",
        text,
        max_tokens,
        temperature=chance.choice((0.5, 0.8, 1.0)) if sampled else 0.0,
        top_p=chance.choice((0.9, 1.0)) if sampled else 1.0,
        seed=chance.randrange(2**31) if sampled else 0,
        stop=stop,
        presence=chance.choice((0.3, 0.6)) if penalized else 0.0,
        frequency=chance.choice((0.0, 0.2)) if penalized else 0.0,
        repetition=chance.choice((1.0, 1.2)) if penalized else 1.0,
    )


def _again(texts: Sequence[str]) -> list[str]:
    return [*texts] * 8
