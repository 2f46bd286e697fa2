# SPDX-License-Identifier: Apache-2.0
"""A suffix tree over generated sequences that counts each string of at most `max_depth` tokens.

It is used by suffix decoding (Oliaro et al. 2024, arXiv:2411.04975). Counts, limits and the order of equal counts match
arctic-inference 0.3.0 (csrc/suffix_decoding/suffix_tree.cc), so that the drafts are the same. A string that occurred
once is not expanded: its node points into the sequence that contains it, and gets children when the string recurs.
`SuffixIndex` finds the last occurrence of the longest match; this tree counts all occurrences of every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ROUNDING = 1e-6  # tolerance for floating-point comparisons


@dataclass(eq=False, slots=True)
class SuffixNode:
    """A string that occurred `count` times; `ranked` has its continuations, most frequent first.

    For a string that occurred once, `owner` is the sequence that contains it and `end` its end position there.
    """

    count: int = 0
    children: dict[int, SuffixNode] = field(default_factory=dict)
    ranked: list[SuffixNode] = field(default_factory=list)
    token: int = -1
    owner: SuffixHistory | None = None
    end: int = 0


@dataclass(eq=False, slots=True)
class SuffixHistory:
    """A sequence of tokens in a tree; `open` has the nodes of its suffixes that can grow, each with its depth."""

    tokens: list[int] = field(default_factory=list)
    open: list[tuple[SuffixNode, int]] = field(default_factory=list)


@dataclass(frozen=True)
class SuffixPrediction:
    """Predicted tokens; `score` is the sum of the estimated probabilities of their prefixes."""

    tokens: list[int] = field(default_factory=list)
    score: float = 0.0


class SuffixTree:
    """Counts the strings of growing sequences in O(number of repeated suffixes) per token."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._root = SuffixNode()

    def append(self, sequence: SuffixHistory, token: int) -> None:
        """Append a token to a sequence."""
        sequence.tokens.append(token)
        reached, sequence.open = [*sequence.open, (self._root, 0)], []
        for node, depth in reached:
            child = node.children.get(token)
            if child is None:
                child = SuffixNode(1, token=token, owner=sequence, end=len(sequence.tokens))
                node.children[token] = child
                node.ranked.append(child)
                continue
            self._unfold(child, depth + 1)
            _count_once_more(node.ranked, child)
            if depth + 1 < self._max_depth:
                sequence.open.append((child, depth + 1))

    def _unfold(self, node: SuffixNode, depth: int) -> None:
        """Add the continuation of a string that occurred once to its node, or mark it open if its owner ends there."""
        owner, end = node.owner, node.end
        if owner is None:
            return
        node.owner = None
        if depth == self._max_depth:
            return
        if end == len(owner.tokens):
            owner.open.append((node, depth))
            return
        child = SuffixNode(1, token=owner.tokens[end], owner=owner, end=end + 1)
        node.children[child.token] = child
        node.ranked.append(child)

    def remove(self, sequence: SuffixHistory) -> None:
        """Remove a sequence, to which nothing may be appended afterwards."""
        for start in range(len(sequence.tokens)):
            node = self._root
            for token in sequence.tokens[start : start + self._max_depth]:
                child = node.children[token]
                if child.count == 1:
                    del node.children[token]
                    node.ranked.remove(child)
                    break
                _count_once_less(node.ranked, child)
                node = child

    def guess(self, context: Sequence[int], most: int, factor: float, least: float) -> SuffixPrediction:
        """Return the continuation of `context` with the highest score over all of its suffixes that occur in the tree.

        A suffix of n tokens predicts at most min(`most`, `factor` * n) tokens, each with a probability of at least
        `least`.
        """
        best = SuffixPrediction()
        for length in range(1, min(len(context), self._max_depth)):
            node, ahead = self._find(context[len(context) - length :])
            if node is None or (node.owner and node.end + ahead == len(node.owner.tokens)):
                break  # longer suffixes do not occur either, or end there
            guess = self._follow(node, ahead, length, min(most, int(length * factor + ROUNDING)), least)
            if guess.score >= best.score - ROUNDING:
                best = guess
        return best

    def _find(self, string: Sequence[int]) -> tuple[SuffixNode | None, int]:
        """Return (node, tokens beyond that node) of a string; the node is None if the string does not occur."""
        node = self._root
        for at, token in enumerate(string):
            if node.owner:
                rest, end = string[at:], node.end
                return (node, len(rest)) if node.owner.tokens[end : end + len(rest)] == list(rest) else (None, 0)
            found = node.children.get(token)
            if found is None:
                return None, 0
            node = found
        return node, 0

    def _follow(self, node: SuffixNode, ahead: int, depth: int, most: int, least: float) -> SuffixPrediction:
        """Follow the most frequent continuations of a string of `depth` tokens."""
        tokens: list[int] = []
        score, probability = 0.0, 1.0
        while len(tokens) < most:
            if node.owner:
                start = node.end + ahead
                tail = node.owner.tokens[start : start + min(most - len(tokens), self._max_depth - depth)]
                return SuffixPrediction(tokens + tail, score + probability * len(tail))
            if not node.ranked:
                break
            child = node.ranked[0]
            probability *= child.count / node.count
            if probability < least - ROUNDING:
                break
            tokens.append(child.token)
            score, node, depth = score + probability, child, depth + 1
        return SuffixPrediction(tokens, score)


def _count_once_more(ranked: list[SuffixNode], node: SuffixNode) -> None:
    """Increment a node's count, and move it before all nodes with the same or a lower count."""
    place = ranked.index(node)
    before = ranked[place - 1].count if place else node.count + 2
    node.count += 1
    if before <= node.count:
        del ranked[place]
        ranked.insert(next(i for i, other in enumerate(ranked) if other.count == before), node)


def _count_once_less(ranked: list[SuffixNode], node: SuffixNode) -> None:
    """Decrement a node's count, and move it after all nodes that had the same count."""
    place = ranked.index(node)
    del ranked[place]
    while place < len(ranked) and ranked[place].count == node.count:
        place += 1
    ranked.insert(place, node)
    node.count -= 1
