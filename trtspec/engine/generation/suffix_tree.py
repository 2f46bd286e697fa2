# SPDX-License-Identifier: Apache-2.0
"""A tree of all that was said, which counts how often each string of at most `max_depth` tokens stood anywhere.

Suffix decoding drafts by it (Oliaro et al. 2024, arXiv:2411.04975). Counts, limits and the order of equal counts are
those of arctic-inference 0.3.0 (csrc/suffix_decoding/suffix_tree.cc), so that the drafts are the same. What stood once
only is not stored: its node points into the one sequence that has it, and gets children when the string comes again.
`SuffixIndex` finds the last occurrence of the longest match; this counts all of them, of every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ROUNDING = 1e-6  # what is equal in decimals counts as equal


@dataclass(eq=False, slots=True)
class Node:
    """A string that stood `count` times; `ranked` are its continuations, the most frequent first.

    Of a string that stood once, `owner` is the sequence and `end` the place behind it there.
    """

    count: int = 0
    children: dict[int, Node] = field(default_factory=dict)
    ranked: list[Node] = field(default_factory=list)
    token: int = -1
    owner: Said | None = None
    end: int = 0


@dataclass(eq=False, slots=True)
class Said:
    """A sequence of tokens in a tree; `open` are the nodes of its last tokens, each with its depth."""

    tokens: list[int] = field(default_factory=list)
    open: list[tuple[Node, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Guess:
    """Tokens that may follow, and the sum of their estimated probabilities, each times those before it."""

    tokens: list[int] = field(default_factory=list)
    score: float = 0.0


class SuffixTree:
    """Counts the strings of sequences that grow; O(number of repeated strings) a token."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._root = Node()

    def append(self, said: Said, token: int) -> None:
        """Append a token to a sequence."""
        said.tokens.append(token)
        reached, said.open = [*said.open, (self._root, 0)], []
        for node, depth in reached:
            child = node.children.get(token)
            if child is None:
                child = Node(1, token=token, owner=said, end=len(said.tokens))
                node.children[token] = child
                node.ranked.append(child)
                continue
            self._unfold(child, depth + 1)
            _count_once_more(node.ranked, child)
            if depth + 1 < self._max_depth:
                said.open.append((child, depth + 1))

    def _unfold(self, node: Node, depth: int) -> None:
        """Give the node of a string that stood once its continuation, or note that its owner may still bring one."""
        owner, end = node.owner, node.end
        if owner is None:
            return
        node.owner = None
        if depth == self._max_depth:
            return
        if end == len(owner.tokens):
            owner.open.append((node, depth))
            return
        child = Node(1, token=owner.tokens[end], owner=owner, end=end + 1)
        node.children[child.token] = child
        node.ranked.append(child)

    def remove(self, said: Said) -> None:
        """Forget a sequence, which must not be appended to any more."""
        for start in range(len(said.tokens)):
            node = self._root
            for token in said.tokens[start : start + self._max_depth]:
                child = node.children[token]
                if child.count == 1:
                    del node.children[token]
                    node.ranked.remove(child)
                    break
                _count_once_less(node.ranked, child)
                node = child

    def guess(self, context: Sequence[int], most: int, factor: float, least: float) -> Guess:
        """Return the best guess at what follows `context`, by the score of all its suffixes that stood somewhere.

        A suffix of n tokens guesses at most `most` and at most `factor` * n tokens, none less probable than `least`.
        """
        best = Guess()
        for length in range(1, min(len(context), self._max_depth)):
            node, ahead = self._find(context[len(context) - length :])
            if node is None or (node.owner and node.end + ahead == len(node.owner.tokens)):
                break  # longer ones stood nowhere either, or nothing follows them
            guess = self._follow(node, ahead, length, min(most, int(length * factor + ROUNDING)), least)
            if guess.score >= best.score - ROUNDING:
                best = guess
        return best

    def _find(self, string: Sequence[int]) -> tuple[Node | None, int]:
        """Return the node of a string, None where it stood nowhere; the last tokens may be ahead of a single one."""
        node = self._root
        for place, token in enumerate(string):
            if node.owner:
                rest, end = string[place:], node.end
                return (node, len(rest)) if node.owner.tokens[end : end + len(rest)] == list(rest) else (None, 0)
            found = node.children.get(token)
            if found is None:
                return None, 0
            node = found
        return node, 0

    def _follow(self, node: Node, ahead: int, depth: int, most: int, least: float) -> Guess:
        """Follow the most frequent continuations of a string of `depth` tokens."""
        tokens: list[int] = []
        score, probability = 0.0, 1.0
        while len(tokens) < most:
            if node.owner:
                start = node.end + ahead
                tail = node.owner.tokens[start : start + min(most - len(tokens), self._max_depth - depth)]
                return Guess(tokens + tail, score + probability * len(tail))
            if not node.ranked:
                break
            child = node.ranked[0]
            probability *= child.count / node.count
            if probability < least - ROUNDING:
                break
            tokens.append(child.token)
            score, node, depth = score + probability, child, depth + 1
        return Guess(tokens, score)


def _count_once_more(ranked: list[Node], node: Node) -> None:
    """Count a node, and move it before all those that it draws level with or passes."""
    place = ranked.index(node)
    before = ranked[place - 1].count if place else node.count + 2
    node.count += 1
    if before <= node.count:
        del ranked[place]
        ranked.insert(next(i for i, other in enumerate(ranked) if other.count == before), node)


def _count_once_less(ranked: list[Node], node: Node) -> None:
    """Count a node less, and move it behind all those that had as many."""
    place = ranked.index(node)
    del ranked[place]
    while place < len(ranked) and ranked[place].count == node.count:
        place += 1
    ranked.insert(place, node)
    node.count -= 1
