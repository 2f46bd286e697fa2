# SPDX-License-Identifier: Apache-2.0
"""Static draft trees, by name and as lists of paths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from tests._support.configs import model_config
from trtspec.kernels.tree import Tree
from trtspec.methods.tree_choices import (
    EAGLE_CHOICES,
    MEDUSA_CHOICES,
    MOST_NODES,
    Choice,
    check_ranks,
    find_choices,
    most_ranks,
)

# The number of nodes on each level of the published trees, and their last path.
# FasterDecoding/Medusa, medusa/model/medusa_choices.py
MEDUSA = {
    "mc_sim_7b_63": ([10, 28, 23, 2], (0, 7, 0)),
    "vicuna_7b_stage2": ([10, 23, 23, 7], (1, 4)),
    "vicuna_7b_stage1_ablation": ([10, 21, 25, 7], (3, 1)),
    "vicuna_7b_stage1": ([10, 32, 20, 1], (5, 1)),
    "vicuna_13b_stage2": ([10, 19, 25, 9], (1, 0, 0, 0)),
    "vicuna_13b_stage1": ([10, 29, 23, 1], (1, 6)),
    "vicuna_33b_stage2": ([10, 24, 24, 5], (2, 2)),
    "vicuna_33b_stage1": ([10, 34, 19], (0, 2, 1)),
    "zephyr_stage2": ([10, 27, 23, 3], (2, 3)),
}
# SafeAILab/EAGLE, eagle/model/choices.py
EAGLE = {"mc_sim_7b_63": ([4, 8, 8, 3, 2], (0, 0, 0, 0, 1))}


def described(trees: dict[str, tuple[Choice, ...]]) -> dict[str, tuple[list[int], Choice]]:
    counts = {name: Counter(map(len, choices)) for name, choices in trees.items()}
    return {name: ([count[depth] for depth in sorted(count)], trees[name][-1]) for name, count in counts.items()}


def test_published_trees_match_the_reference() -> None:
    assert described(MEDUSA_CHOICES) == MEDUSA
    assert described(EAGLE_CHOICES) == EAGLE


@pytest.mark.parametrize("trees", [MEDUSA_CHOICES, EAGLE_CHOICES], ids=["medusa", "eagle"])
def test_tree_name_equals_its_list_of_choices(trees: dict[str, tuple[Choice, ...]]) -> None:
    for name, choices in trees.items():
        assert find_choices(name, trees) == find_choices([list(choice) for choice in choices], {}) == choices
        assert Tree.from_choices(choices).parents.shape == (1, len(choices) + 1)


def test_tree_choices_may_be_unordered() -> None:
    assert find_choices([[0, 0], [0], [2]], {}) == ((0, 0), (0,), (2,))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("mc_sim", "unknown tree 'mc_sim'; known: mc_sim_7b_63"),
        (63, "63 is neither a name nor a list of choices such as [[0], [1], [0, 0]]"),
        (None, "null is neither a name nor a list of choices such as [[0], [1], [0, 0]]"),
        ([], "0 choices, expected 1 to 256"),
        ([[rank] for rank in range(MOST_NODES + 1)], "257 choices, expected 1 to 256"),
        ([[0], []], "[] is not a choice: expected ranks from 0 on, such as [0, 2]"),
        ([[0], 1], "1 is not a choice: expected ranks from 0 on, such as [0, 2]"),
        ([[0], [-1]], "[-1] is not a choice: expected ranks from 0 on, such as [0, 2]"),
        ([[True]], "[true] is not a choice: expected ranks from 0 on, such as [0, 2]"),
        ([[0.0]], "[0.0] is not a choice: expected ranks from 0 on, such as [0, 2]"),
        ([["0"]], '["0"] is not a choice: expected ranks from 0 on, such as [0, 2]'),
        ([[0], [1], [0]], "[0] is listed twice"),
        ([[0], [0, 1], [1, 0]], "[1, 0] needs [1], which is missing"),
        ([[0], [0, 1, 2]], "[0, 1, 2] needs [0, 1], which is missing"),
    ],
)
def test_invalid_tree_is_rejected(written: Any, message: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        find_choices(written, EAGLE_CHOICES)
    assert str(caught.value) == message


def test_rank_beyond_the_vocabulary_is_reported() -> None:
    assert most_ranks([(0,), (7,), (0, 2)]) == 8
    assert list(check_ranks([(0,), (7,)], model_config(vocab_size=8))) == []
    (diagnostic,) = check_ranks([(0,), (7,)], model_config(vocab_size=7))
    assert (diagnostic.path, diagnostic.message) == ("choices", "rank 7 is beyond the target's 7 vocabulary entries")
