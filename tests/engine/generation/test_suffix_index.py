# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.engine.generation.suffixes import SuffixIndex

# Few different tokens, so that nearly every text repeats, and repeated pieces, as in loops.
PIECES = st.lists(st.integers(0, 2), max_size=8)
TEXTS = st.lists(st.tuples(PIECES, st.integers(1, 4)), max_size=6).map(
    lambda pieces: [token for piece, times in pieces for token in piece * times]
)


def search(text: list[int], max_match: int) -> tuple[int, int]:
    """Return the longest suffix of at most max_match tokens that also ends earlier, and its last earlier end."""
    for length in range(min(max_match, len(text) - 1), 0, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                return length, end
    return 0, 0


@pytest.mark.slow
@given(text=TEXTS, max_match=st.sampled_from([1, 2, 3, 5, 64]))
@settings(max_examples=400, deadline=None)
def test_match_after_each_token_equals_a_search(text: list[int], max_match: int) -> None:
    index = SuffixIndex(max_match)
    for place, token in enumerate(text):
        index.extend([token])
        length, end = search(text[: place + 1], max_match)
        assert index.matched == length
        assert not length or index.after == end


def test_most_recent_of_two_equal_matches_is_used() -> None:
    index = SuffixIndex(16)
    index.extend([1, 2, 7, 1, 2, 8, 1, 2])
    assert (index.matched, index.after) == (2, 5)
    assert index.continuation(3) == [8, 1, 2]


def test_longest_match_is_preferred_over_the_most_recent() -> None:
    index = SuffixIndex(16)
    index.extend([5, 1, 2, 7, 1, 2, 8, 5, 1, 2])
    assert (index.matched, index.after) == (3, 3)
    assert index.continuation(2) == [7, 1]


def test_match_limited_by_max_match_is_the_most_recent() -> None:
    index = SuffixIndex(2)
    index.extend([5, 1, 2, 7, 1, 2, 8, 5, 1, 2])
    assert (index.matched, index.after) == (2, 6)


@pytest.mark.parametrize(
    ("text", "matched", "drafted"),
    [
        ([3, 3, 3], 2, [3, 3, 3, 3, 3]),
        ([9, 4, 5, 4, 5, 4], 3, [5, 4, 5, 4, 5]),
        ([1, 2, 3, 1, 2, 3, 1], 4, [2, 3, 1, 2, 3]),
    ],
    ids=["one-token", "two", "three"],
)
def test_match_that_overlaps_the_end_is_continued_periodically(
    text: list[int], matched: int, drafted: list[int]
) -> None:
    index = SuffixIndex(16)
    index.extend(text)
    assert index.matched == matched
    assert index.continuation(5) == drafted


def test_text_without_repeated_tokens_has_no_match() -> None:
    index = SuffixIndex(16)
    index.extend([1, 2, 3, 4])
    assert index.matched == 0
    assert len(index) == 4
