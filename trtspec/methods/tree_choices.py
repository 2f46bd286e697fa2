# SPDX-License-Identifier: Apache-2.0
"""Static draft trees: published trees by name, and trees listed in a recipe.

A choice is a path from the root: (0, 2) is the third best token after the best token. Every choice is a node of the
tree, so its prefixes must be choices too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.core.registry import did_you_mean
from trtspec.recipe.schema import refuse

Choice = tuple[int, ...]

# the largest tree for which TensorRT-LLM builds engines (NVIDIA/TensorRT-LLM, tensorrt_llm/builder.py)
MOST_NODES = 256


def find_choices(written: Any, known: Mapping[str, tuple[Choice, ...]]) -> tuple[Choice, ...]:
    """Return the choices of a recipe's value, which is a tree's name or a list of paths.

    Raise ValueError (for a pydantic validator) if the name is unknown or the choices are not a tree.
    """
    if isinstance(written, str):
        if written not in known:
            message = f"unknown tree {quote_value(written)}; known: {', '.join(known)}"
            raise refuse("bad-value", message, did_you_mean(written, known))
        return known[written]
    if not isinstance(written, list):
        raise refuse(
            "wrong-type", f"{quote_value(written)} is neither a name nor a list of choices such as [[0], [1], [0, 0]]"
        )
    if not 1 <= len(written) <= MOST_NODES:
        raise refuse("out-of-range", f"{len(written)} choices, expected 1 to {MOST_NODES}")
    choices = tuple(map(_choice, written))
    _check_tree(choices)
    return choices


def smaller_trees(choices: Sequence[Choice]) -> Iterator[dict[str, Any]]:
    """Yield `choices` of the first 4, 8, 16, ... nodes: published tables begin with the most useful nodes."""
    for size in (4, 8, 16, 32, 64, 128):
        if size < len(choices):
            first = set(choices[:size])
            yield {"choices": [list(path) for path in choices[:size] if _is_rooted(path, first)]}


def _is_rooted(path: Choice, choices: set[Choice]) -> bool:
    return all(path[:depth] in choices for depth in range(1, len(path)))


def most_ranks(choices: Iterable[Choice]) -> int:
    """Return the largest number of tokens ranked after a node."""
    return max(rank + 1 for choice in choices for rank in choice)


def check_ranks(choices: Iterable[Choice], config: ModelConfig) -> list[Diagnostic]:
    """Report choices that rank more tokens than the target's vocabulary has, under the option's name."""
    if (ranks := most_ranks(choices)) <= config.vocab_size:
        return []
    return [
        Diagnostic(
            "choices", "out-of-range", f"rank {ranks - 1} is beyond the target's {config.vocab_size} vocabulary entries"
        )
    ]


def _choice(written: Any) -> Choice:
    ranks = isinstance(written, list) and all(type(rank) is int and rank >= 0 for rank in written)
    if not (ranks and written):
        raise refuse("bad-value", f"{quote_value(written)} is not a choice: expected ranks from 0 on, such as [0, 2]")
    return tuple(written)


def _check_tree(choices: tuple[Choice, ...]) -> None:
    seen: set[Choice] = set()
    for choice in sorted(choices, key=len):
        if choice in seen:
            raise refuse("bad-value", f"{quote_value(list(choice))} is listed twice")
        if choice[:-1] and choice[:-1] not in seen:
            raise refuse(
                "bad-value", f"{quote_value(list(choice))} needs {quote_value(list(choice[:-1]))}, which is missing"
            )
        seen.add(choice)


def _table(digits: str) -> tuple[Choice, ...]:
    """Parse choices written as words of one-digit ranks."""
    return tuple(tuple(map(int, word)) for word in digits.split())


# FasterDecoding/Medusa, medusa/model/medusa_choices.py
MEDUSA_CHOICES: dict[str, tuple[Choice, ...]] = {
    "mc_sim_7b_63": _table(
        "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 "
        "005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
    ),
    "vicuna_7b_stage2": _table(
        "0 00 1 01 000 10 2 02 001 03 3 010 20 4 002 04 11 100 0000 5 003 05 020 30 011 06 6 07 004 40 12 08 7 "
        "030 0001 005 21 006 101 0010 200 50 09 012 8 040 021 13 007 0002 008 110 0100 60 9 013 0003 102 050 31 "
        "0020 70 14"
    ),
    "vicuna_7b_stage1_ablation": _table(
        "0 00 1 000 01 10 2 02 001 3 03 010 20 002 04 4 0000 100 11 003 020 05 5 30 011 06 6 004 12 0001 40 005 "
        "07 08 030 0010 101 7 200 006 21 012 50 021 09 0002 040 8 13 007 0100 110 60 9 008 009 050 0020 102 013 "
        "0003 300 31"
    ),
    "vicuna_7b_stage1": _table(
        "0 00 1 2 01 10 3 02 4 000 03 5 20 04 6 05 11 001 7 30 06 8 9 010 07 08 40 002 12 09 21 50 100 003 13 020 "
        "011 004 60 14 005 22 030 31 006 70 15 101 200 007 80 0000 41 012 040 90 021 23 16 008 050 32 51"
    ),
    "vicuna_13b_stage2": _table(
        "0 00 1 000 01 10 2 02 001 010 3 03 20 002 0000 04 100 11 4 003 05 020 5 30 011 06 004 0001 07 005 12 "
        "0010 030 101 40 006 08 200 09 6 7 21 50 012 0002 8 040 0100 021 007 110 13 0020 9 008 050 0003 009 013 "
        "102 0011 300 1000"
    ),
    "vicuna_13b_stage1": _table(
        "0 00 1 01 2 10 000 02 3 03 4 20 04 001 05 5 11 010 6 06 002 7 30 8 07 08 100 003 40 12 9 09 21 020 004 "
        "13 011 005 50 030 0000 006 60 14 200 012 31 040 101 22 007 15 70 008 80 050 009 021 110 013 41 23 16"
    ),
    "vicuna_33b_stage2": _table(
        "0 00 1 01 000 10 2 02 001 03 3 010 20 04 4 002 11 100 05 5 0000 003 30 020 06 011 6 004 07 7 12 40 8 030 "
        "005 0001 08 21 09 101 200 006 50 0010 13 012 040 007 021 9 110 0002 60 008 0100 70 013 050 14 009 31 102 "
        "22"
    ),
    "vicuna_33b_stage1": _table(
        "0 1 00 2 01 3 10 4 02 5 03 000 6 04 20 7 11 05 30 8 9 06 07 001 12 40 010 08 09 21 002 50 13 003 100 14 "
        "60 020 31 22 004 70 011 15 41 005 030 90 80 16 006 23 012 32 040 200 17 101 007 51 24 008 021"
    ),
    "zephyr_stage2": _table(
        "0 00 1 01 2 000 10 02 3 03 4 20 001 04 5 05 010 11 6 002 30 06 7 07 08 003 100 09 020 12 40 8 9 21 011 "
        "004 0000 50 030 13 005 006 60 200 101 012 040 14 31 22 007 70 021 008 013 050 15 009 110 0001 0010 41 23"
    ),
}

# SafeAILab/EAGLE, eagle/model/choices.py: the same name as Medusa's table, but another tree, of 25 nodes
EAGLE_CHOICES: dict[str, tuple[Choice, ...]] = {
    "mc_sim_7b_63": _table(
        "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
    ),
}
