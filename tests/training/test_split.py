# SPDX-License-Identifier: Apache-2.0
"""Documents are assigned to one side completely, and evaluation prompts are never trained on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.prompt import Prompt
from trtspec.training.split_prompts import ALIKE, BEGINNING, assign_documents, assign_sides, leaked
from trtspec.training.texts import HELD_OUT, TRAIN, VALIDATION

LONG = "x" * ALIKE


def prompts_of(*texts: str, kind: str = "a") -> list[Prompt]:
    return [Prompt(text, str(number), kind) for number, text in enumerate(texts)]


def pairs_by_definition(texts: list[str]) -> list[tuple[int, int]]:
    """Return the pairs of similar prompts by comparing all of them."""

    def alike(one: str, other: str) -> bool:
        short, long = sorted((" ".join(one.split()), " ".join(other.split())), key=len)
        begins = long.startswith(short) and len(short) >= BEGINNING
        return short == long or begins or (len(short) >= ALIKE and short[:ALIKE] == long[:ALIKE])

    return [(i, j) for j in range(len(texts)) for i in range(j) if alike(texts[i], texts[j])]


def groups_by_definition(texts: list[str]) -> set[frozenset[int]]:
    groups = [{place} for place in range(len(texts))]
    for one, other in pairs_by_definition(texts):
        first, second = (next(group for group in groups if place in group) for place in (one, other))
        if first is not second:
            groups.remove(second)
            first |= second
    return {frozenset(group) for group in groups}


def groups_of(documents: list[int]) -> set[frozenset[int]]:
    return {frozenset(place for place, own in enumerate(documents) if own == each) for each in documents}


# Few letters, and pieces about as long as the limits, so that all relations occur.
PIECES = st.sampled_from(["a", "b", " ", "c" * (BEGINNING - 1), "d" * BEGINNING, "e" * (ALIKE - 1), LONG])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=4).map("".join), max_size=9))
def test_document_groups_match_the_definition(texts: list[str]) -> None:
    assert groups_of(assign_documents(prompts_of(*texts))) == groups_by_definition(texts)


def test_document_field_determines_the_groups() -> None:
    prompts = [Prompt(text, text, "a", document=name) for text, name in (("p", "d1"), ("q", "d2"), ("r", "d1"))]
    assert assign_documents(prompts) == [0, 1, 0]


def test_common_system_prompt_does_not_merge_documents() -> None:
    chats = [
        Prompt("", str(n), "a", ({"role": "system", "content": LONG}, {"role": "user", "content": asked}))
        for n, asked in enumerate(("one", "two", "one"))
    ]
    assert assign_documents(chats) == [0, 1, 0]


def test_split_separates_documents_and_stratifies_kinds() -> None:
    prompts = [
        Prompt(f"{kind} {number // 2} {LONG} {number}", f"{number}", kind)
        for kind in ("a", "b")
        for number in range(40)
    ]
    sides = assign_sides(prompts, seed=1)
    assert len({(own, side) for own, side in zip(assign_documents(prompts), sides, strict=True)}) == 40
    counts = Counter((prompt.kind, side) for prompt, side in zip(prompts, sides, strict=True))
    assert {counts[kind, HELD_OUT] for kind in "ab"} == {8}
    assert {counts[kind, VALIDATION] for kind in "ab"} == {4}
    assert {counts[kind, TRAIN] for kind in "ab"} == {28}


def test_split_depends_only_on_the_seed() -> None:
    prompts = prompts_of(*(f"prompt {number}" for number in range(30)))
    assert assign_sides(prompts, 1) == assign_sides(prompts, 1) != assign_sides(prompts, 2)
    turned = prompts[::-1]
    assert assign_sides(turned, 1) == assign_sides(prompts, 1)[::-1]


def test_separate_evaluation_prompts_disable_the_evaluation_split() -> None:
    assert HELD_OUT not in assign_sides(prompts_of(*map(str, range(30))), 0, judges=False)


def test_single_repeated_prompt_is_rejected() -> None:
    with pytest.raises(
        TrtspecError, match=r"20 prompts of 1 documents.*20 are equal or have the same beginning, as 0 and 1"
    ):
        assign_sides(prompts_of(*["the same"] * 20), 0)


def test_leaked_prompt_is_reported() -> None:
    prompts = prompts_of("one", "two " + LONG)
    assert leaked(prompts, [Prompt("three", "j", "a")]) is None
    found = leaked(prompts, [Prompt("three", "j", "a"), Prompt("two  " + LONG + " and more", "k", "a")])
    assert found is not None
    assert [each.name for each in found] == ["1", "k"]
