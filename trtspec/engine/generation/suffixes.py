# SPDX-License-Identifier: Apache-2.0
"""Indexes of repeated token strings in generated text, for drafters that propose earlier continuations.

`SuffixIndex` finds the last earlier occurrence of a text's final tokens; `SuffixTree` counts all occurrences of every
string of at most `max_depth` tokens.

The index is a suffix automaton (Blumer et al. 1985) that grows with the text, token by token. Each state represents the
strings that end at the same positions of the text, which are suffixes of one another; a state's link leads to the
longest suffix that also ends at other positions. The matched state represents the longest suffix of the text that
occurred before, limited to `max_match` tokens. All shorter suffixes are on the path of links from this state. Last end
positions are exact along this path, which is never longer than `max_match`; deeper states are not used.

The tree is used by suffix decoding (Oliaro et al. 2024, arXiv:2411.04975). Counts, limits and the order of equal counts
match arctic-inference 0.3.0 (csrc/suffix_decoding/suffix_tree.cc), so that the drafts are the same. A string that
occurred once is not expanded: its node points into the sequence that contains it, and gets children when the string
recurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ROOT = 0  # the empty string
NOWHERE = -1  # the root's link
ROUNDING = 1e-6  # tolerance for floating-point comparisons


class SuffixIndex:
    """Index of a growing text that finds the last repetition of its end.

    `matched` is the length of the longest suffix of at most `max_match` tokens that also ends earlier in the text (the
    two may overlap), and `after` the position after its most recent earlier end. Appending a token takes O(max_match)
    in the worst case, and O(1) on average for texts with little repetition.
    """

    def __init__(self, max_match: int) -> None:
        self.matched = 0
        self.after = 0
        self._max_match = max_match
        self._text: list[int] = []
        # For each state: its transitions, link, length of its longest string, and last end position of its strings.
        self._next: list[dict[int, int]] = [{}]
        self._link = [NOWHERE]
        self._len = [0]
        self._ended = [0]
        self._whole = ROOT  # the state of the whole text
        self._match = ROOT  # the state of the matched suffix

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._advance_match(token)
            self._grow(token)
            self._text.append(token)
            self.after = self._ended[self._match]
            state, end = self._match, len(self._text)
            while state != ROOT:
                self._ended[state] = end
                state = self._link[state]

    def continuation(self, length: int) -> list[int]:
        """Return the `length` tokens after the match, repeated periodically if the text ends before that."""
        followed = self._text[self.after : self.after + length]
        return [followed[at % len(followed)] for at in range(length)]

    def _advance_match(self, token: int) -> None:
        """Extend the match by `token`, or shorten it to the longest earlier match that `token` followed."""
        state, length = self._match, self.matched
        while token not in self._next[state]:
            if state == ROOT:
                self._match, self.matched = ROOT, 0
                return
            state = self._link[state]
            length = self._len[state]
        state = self._next[state][token]
        length = min(length + 1, self._max_match)
        while self._len[self._link[state]] >= length:
            state = self._link[state]
        self._match, self.matched = state, length

    def _grow(self, token: int) -> None:
        whole = self._add_state({}, ROOT, len(self._text) + 1, len(self._text) + 1)
        state = self._whole
        self._whole = whole
        while state != NOWHERE and token not in self._next[state]:
            self._next[state][token] = whole
            state = self._link[state]
        if state == NOWHERE:
            return
        link = self._next[state][token]
        if self._len[link] != self._len[state] + 1:
            link = self._split(link, state, token)
        self._link[whole] = link

    def _split(self, state: int, before: int, token: int) -> int:
        """Move the strings of `state` that are a string of `before` plus `token` to a new state; return the new state.

        These suffixes ended at the positions of `state` and now also end at the end of the text, so a match in `state`
        is one of them.
        """
        shorter = self._add_state(dict(self._next[state]), self._link[state], self._len[before] + 1, self._ended[state])
        self._link[state] = shorter
        while before != NOWHERE and self._next[before].get(token) == state:
            self._next[before][token] = shorter
            before = self._link[before]
        if self._match == state:
            self._match = shorter
        return shorter

    def _add_state(self, following: dict[int, int], link: int, length: int, ended: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._len.append(length)
        self._ended.append(ended)
        return len(self._link) - 1


@dataclass(eq=False, slots=True)
class SuffixNode:
    """A string that occurred `count` times; `ranked` has its continuations, most frequent first.

    For a string that occurred once, `owner` is the sequence that contains it and `end` its end position in that
    sequence.
    """

    count: int = 0
    children: dict[int, SuffixNode] = field(default_factory=dict)
    ranked: list[SuffixNode] = field(default_factory=list)
    token: int = -1
    owner: SuffixHistory | None = None
    end: int = 0


@dataclass(eq=False, slots=True)
class SuffixHistory:
    """A token sequence in a tree; `open` has the nodes of its suffixes that can still grow, each with its depth."""

    tokens: list[int] = field(default_factory=list)
    open: list[tuple[SuffixNode, int]] = field(default_factory=list)


@dataclass(frozen=True)
class SuffixPrediction:
    """Predicted tokens; `score` is the sum of the estimated probabilities of their prefixes."""

    tokens: list[int] = field(default_factory=list)
    score: float = 0.0


class SuffixTree:
    """Counts of all strings of growing sequences; appending a token takes O(number of repeated suffixes)."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._root = SuffixNode()

    def append(self, sequence: SuffixHistory, token: int) -> None:
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
        """Give the node of a string that occurred once its child, or mark it open if its owner ends with the string."""
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
        """Remove a sequence from the counts; nothing may be appended to it afterwards."""
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
        """Return the continuation of `context` with the highest score over all of its suffixes in the tree.

        A suffix of n tokens predicts at most min(`most`, `factor` * n) tokens. A token is predicted only if the
        probability of the path to it is at least `least`.
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
        """Predict at most `most` tokens along the most frequent continuations of a string of `depth` tokens."""
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
