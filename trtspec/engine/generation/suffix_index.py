# SPDX-License-Identifier: Apache-2.0
"""An index of a growing text that finds the last earlier occurrence of its final tokens.

A suffix automaton (Blumer et al. 1985) grows with the text, token by token. Each state represents the strings that end
at the same positions of the text, which are suffixes of one another; a state's link leads to the longest suffix that
also ends at other positions. A pointer refers to the longest suffix of the text that occurred before, limited to
`max_match` tokens. All suffixes of at most that length are on the path of links from there. Last end positions are
exact along this path, which is never longer than `max_match`; deeper states are not used.
"""

from __future__ import annotations

from collections.abc import Sequence

ROOT = 0  # the empty string
NOWHERE = -1  # the root's link


class SuffixIndex:
    """A text and its repetitions.

    `matched` is the length of the longest suffix of at most `max_match` tokens that also ends earlier in the text
    (it may overlap itself), and `after` the position after its most recent earlier end. Appending a token takes
    O(max_match) in the worst case, and O(1) on average for texts with little repetition.
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
        """Append tokens to the text."""
        for token in tokens:
            self._advance_match(token)
            self._grow(token)
            self._text.append(token)
            self.after = self._ended[self._match]
            self._note_ends()

    def continuation(self, length: int) -> list[int]:
        """Return the `length` tokens after the match, repeated periodically if the text ends before that."""
        followed = self._text[self.after : self.after + length]
        return [followed[at % len(followed)] for at in range(length)]

    def _advance_match(self, token: int) -> None:
        """Extend the match by a token, or shorten it to the longest match that this token followed before."""
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
        """Add a token to the automaton."""
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
        """Move the strings of `state` that are a string of `before` plus `token` to a new state; return it.

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

    def _note_ends(self) -> None:
        state, end = self._match, len(self._text)
        while state != ROOT:
            self._ended[state] = end
            state = self._link[state]
