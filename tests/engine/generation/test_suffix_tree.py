# SPDX-License-Identifier: Apache-2.0
"""The suffix tree against brute-force counting, and against drafts of arctic-inference 0.3.0."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from trtspec.engine.generation.suffixes import SuffixHistory, SuffixTree


def say(tree: SuffixTree, tokens: Sequence[int], said: SuffixHistory | None = None) -> SuffixHistory:
    said = said or SuffixHistory()
    for token in tokens:
        tree.append(said, token)
    return said


def count(texts: list[list[int]], string: list[int]) -> int:
    size = len(string)
    return sum(text[at : at + size] == string for text in texts for at in range(len(text) - size + 1))


def is_most_frequent(texts: list[list[int]], string: list[int], tokens: list[int], depth: int) -> bool:
    """Return whether each token is one of the most frequent continuations."""
    for token in tokens:
        vocab = {each for text in texts for each in text}
        if len(string) >= depth or count(texts, [*string, token]) < max(count(texts, [*string, one]) for one in vocab):
            return False
        string = [*string, token]
    return True


@pytest.mark.parametrize("seed", range(12))
def test_guessed_tokens_are_the_most_frequent_continuations(seed: int) -> None:
    chance = random.Random(seed)
    depth, vocab = chance.choice([2, 3, 6, 24]), chance.choice([2, 3, 8])
    tree, said = SuffixTree(depth), [SuffixHistory() for _ in range(3)]
    guessed = 0
    for step in range(150):
        if step == 100:
            tree.remove(said.pop(0))
        one = chance.choice(said)
        say(tree, [chance.randrange(vocab)], one)
        texts, context = [each.tokens for each in said], one.tokens[-depth:]
        guess = tree.guess(context, 4, 2.0, 0.1)
        guessed += bool(guess.tokens)
        suffixes = [context[-length:] for length in range(1, len(context))]
        assert not guess.tokens or any(is_most_frequent(texts, each, guess.tokens, depth) for each in suffixes)
    assert guessed > 50


def test_guess_score_is_the_sum_of_path_probabilities() -> None:
    tree = SuffixTree(8)
    text = say(tree, [1, 2, 3, 9, 1, 2, 3, 8, 1, 2])
    # 2 occurs three times, once at the end; 3 follows it twice, and then 9 and 8 once each
    guess = tree.guess(text.tokens[-8:], 4, 1.0, 0.0)
    assert guess.tokens == [3, 9]
    assert guess.score == pytest.approx(2 / 3 + 1 / 3)


def test_guess_length_is_proportional_to_the_match_length() -> None:
    tree = SuffixTree(24)
    text = say(tree, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    assert tree.guess(text.tokens, 24, 1.0, 0.1).tokens == [4, 5, 6]
    assert tree.guess(text.tokens, 24, 2.0, 0.1).tokens == [4, 5, 6, 7, 8, 9]
    assert tree.guess(text.tokens, 2, 2.0, 0.1).tokens == [4, 5]
    assert tree.guess(text.tokens, 24, 1.0, 0.6).tokens == []
    assert tree.guess([3], 24, 1.0, 0.1).tokens == []  # only proper suffixes of the context are used


def test_removed_text_is_not_guessed() -> None:
    tree = SuffixTree(8)
    gone, kept = say(tree, [5, 6, 7]), say(tree, [5, 6, 8])
    tree.remove(gone)
    assert tree.guess([4, 5, 6], 4, 1.0, 0.0).tokens == [8]
    say(tree, [5, 6], kept)
    assert tree.guess(kept.tokens[-8:], 4, 1.0, 0.0).tokens == [8, 5]


def test_equal_counts_rank_by_insertion_and_latest_increment() -> None:
    tree = SuffixTree(8)
    text = say(tree, [1, 2, 0, 1, 3, 0, 1])
    assert tree.guess([0, 1], 1, 1.0, 0.0).tokens == [2]
    say(tree, [3, 0, 1], text)
    assert tree.guess([0, 1], 1, 1.0, 0.0).tokens == [3]
    say(tree, [2, 0, 1], text)  # of equal counts, the last one to reach the count comes first
    assert tree.guess([0, 1], 1, 1.0, 0.0).tokens == [2]
