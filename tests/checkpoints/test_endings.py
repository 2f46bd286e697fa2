# SPDX-License-Identifier: Apache-2.0
"""The end of a text: the token that ends it, and the tokens that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.triton.artifact import make_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.text import StopConditions


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    root: Path = tmp_path_factory.mktemp("tokenizer") / "t"
    return Tokenizer(make_tokenizer(root))


def test_text_ends_before_the_first_end_token() -> None:
    endings = StopConditions(frozenset({7, 8}))
    assert endings.cut([7], [1, 2]) == ([1, 2], None)
    assert endings.cut([], [1, 8, 2, 7]) == ([1], "end_id")
    assert endings.cut([1], [7]) == ([], "end_id")
    assert StopConditions().cut([], [7]) == ([7], None)


@pytest.mark.parametrize("cut", range(7))
def test_stop_text_split_across_calls_ends_the_text_at_its_last_token(cut: int, tokenizer: Tokenizer) -> None:
    text = tokenizer.encode("ab né\n cd né")
    before, new = text[:cut], text[cut:]
    kept, reason = StopConditions(stop=("never", "né\n"), tokenizer=tokenizer).cut(before, new)
    assert (tokenizer.decode([*before, *kept]), reason) == ("ab né\n", "stop")


def test_first_of_end_token_and_stop_text_ends_the_text(tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("ab")
    endings = StopConditions(frozenset({0}), ("b",), tokenizer)
    assert endings.cut([], [a, 0, b]) == ([a], "end_id")
    assert endings.cut([], [a, b, 0]) == ([a, b], "stop")


def test_stop_texts_without_a_tokenizer_raise_value_error() -> None:
    with pytest.raises(ValueError, match="stop texts need a tokenizer"):
        StopConditions(stop=("x",)).cut([], [1])
