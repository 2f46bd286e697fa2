# SPDX-License-Identifier: Apache-2.0
"""Static draft trees: published trees, selected by name, and trees listed in a recipe.

A tree is a list of choices. A choice is a path of token ranks from the root: (0, 2) is the third most probable token
after the most probable token. Each choice is a node of the tree, so its prefixes must be choices, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.core.paths import load_package_yaml
from trtspec.core.registry import did_you_mean
from trtspec.recipe.schema import refuse

Choice = tuple[int, ...]

# the largest tree for which TensorRT-LLM builds engines (NVIDIA/TensorRT-LLM, tensorrt_llm/builder.py)
MOST_NODES = 256


def find_choices(written: Any, known: Mapping[str, tuple[Choice, ...]]) -> tuple[Choice, ...]:
    """Return the choices of an option's value, which is a tree's name in `known` or a list of paths.

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
    """Yield {"choices": ...} with the first 4, 8, 16, ... nodes; published tables list the most useful nodes first.

    Nodes whose parent is not among the first ones are dropped.
    """
    for size in (4, 8, 16, 32, 64, 128):
        if size < len(choices):
            first = set(choices[:size])
            rooted = (path for path in choices[:size] if all(path[:depth] in first for depth in range(1, len(path))))
            yield {"choices": [list(path) for path in rooted]}


def most_ranks(choices: Iterable[Choice]) -> int:
    """Return one more than the highest rank in the choices: the number of top tokens needed per position."""
    return max(rank + 1 for choice in choices for rank in choice)


def check_ranks(choices: Iterable[Choice], config: ModelConfig) -> Iterator[Diagnostic]:
    """Yield an error for choices that rank more tokens than the target's vocabulary has."""
    if (ranks := most_ranks(choices)) > config.vocab_size:
        message = f"rank {ranks - 1} is beyond the target's {config.vocab_size} vocabulary entries"
        yield Diagnostic("choices", "out-of-range", message)


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


def _parse_trees(trees: Mapping[str, str]) -> dict[str, tuple[Choice, ...]]:
    return {name: tuple(tuple(map(int, word)) for word in words.split()) for name, words in trees.items()}


_PUBLISHED = load_package_yaml(Path(__file__).with_name("published_trees.yaml"))
MEDUSA_CHOICES, EAGLE_CHOICES = _parse_trees(_PUBLISHED["medusa"]), _parse_trees(_PUBLISHED["eagle"])
