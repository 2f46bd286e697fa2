# SPDX-License-Identifier: Apache-2.0
"""Lookahead decoding: each step verifies one tree of the window, which generates n-grams, and of earlier n-grams.

The window has `window` columns. The tops of the columns form a chain of tokens that starts with the text's last token,
and each column is a chain below its top. A token of a column attends to the text, to the tops up to the one of its
column, and to its column, which is a path in a tree. Each step appends to every column the target's most probable next
token, even if the text is sampled. A column of `ngram` tokens is an n-gram: it is added to the pool and loses its top.
The window therefore advances by one position per step, regardless of the number of accepted tokens. The first ngram - 2
steps only fill the columns.

Branches with a common prefix share its nodes. Verification considers all branches, including the window's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import Drafter, DrafterConfig, DraftSampling, DraftTokens, VerifyOutcome
from trtspec.kernels.tree import Tree
from trtspec.methods.lookahead import LookaheadOptions


class NgramPool:
    """The `most` newest n-grams for each first token."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tails: dict[int, dict[tuple[int, ...], None]] = {}  # dicts keep insertion order

    def add(self, ngram: Sequence[int]) -> None:
        """Store an n-gram as the newest one of its first token, and evict the oldest beyond `most`."""
        tails, tail = self._tails.setdefault(ngram[0], {}), tuple(ngram[1:])
        tails.pop(tail, None)
        tails[tail] = None
        if len(tails) > self._most:
            del tails[next(iter(tails))]

    def behind(self, token: int) -> list[tuple[int, ...]]:
        """Return the continuations of the n-grams that begin with a token, oldest first."""
        return list(self._tails.get(token, ()))


@dataclass
class Branches:
    """A token tree under construction; branches with a common prefix share its nodes."""

    tokens: list[int] = field(default_factory=list)  # of all nodes except the root
    parents: list[int] = field(default_factory=lambda: [-1])
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)

    def grow(self, node: int, tokens: Sequence[int]) -> int:
        """Add a branch of tokens below `node`; return its last node."""
        for token in tokens:
            parent = node
            node = self._nodes.setdefault((parent, token), len(self.parents))
            if node == len(self.parents):
                self.parents.append(parent)
                self.tokens.append(token)
        return node

    def padded(self, nodes: int) -> tuple[list[int], list[int]]:
        """Return tokens and parents of a tree with `nodes` nodes, where the nodes added as padding are unused."""
        unused = nodes - len(self.parents)
        return self.tokens + [0] * unused, self.parents + [-1] * unused


class Lookahead:
    """The state of one row: its window, its n-gram pool, and the number of its tokens that are in the pool.

    The columns start with tokens spread over the prompt, and the pool with the prompt's n-grams.
    """

    def __init__(self, options: LookaheadOptions, prompt: Sequence[int]) -> None:
        columns, self._ngram = options.window, options.ngram
        self._columns = [[prompt[len(prompt) * column // columns]] for column in range(columns)]
        self._pool = NgramPool(options.verification)
        self._pooled = 0
        self._pool_text(prompt)

    def draft(self, text: Sequence[int]) -> tuple[Branches, list[int]]:
        """Return the tree below the text's last token, and the last node of each of the window's columns."""
        self._pool_text(text)
        self._columns[0][0] = text[-1]
        branches, top, ends = Branches(), 0, []
        for number, column in enumerate(self._columns):
            if number:
                top = branches.grow(top, column[:1])
            ends.append(branches.grow(top, column[1:]))
        for guess in self._pool.behind(text[-1]):
            branches.grow(0, guess)
        return branches, ends

    def learn(self, following: Sequence[int]) -> None:
        for column, token in zip(self._columns, following, strict=True):
            column.append(token)
            if len(column) >= self._ngram:
                self._pool.add(column)
                del column[0]

    def _pool_text(self, text: Sequence[int]) -> None:
        """Add the n-grams that end in the new part of the text to the pool."""
        for end in range(max(self._pooled + 1, self._ngram), len(text) + 1):
            self._pool.add(text[end - self._ngram : end])
        self._pooled = len(text)


class LookaheadDrafter(Drafter):
    """Drafts a tree of window and n-grams for each row; its shape differs between rows and steps."""

    lowerable = ("window", "ngram", "verification")
    replays = False  # the window depends on the target's outputs after draft tokens

    def __init__(self, setup: DrafterConfig) -> None:
        self._device = setup.room.device
        self._options: LookaheadOptions = setup.options
        self._rows: dict[int, Lookahead] = {}
        self._ends: list[list[int]] = []  # the last nodes of each row's columns in the current step

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        for row, prompt in enumerate(prompts, first_row):
            self._rows[row] = Lookahead(self._options, prompt)

    def lower(self, row: int, prompt: Sequence[int], options: LookaheadOptions) -> None:
        """Reset a row's window and pool for smaller `options`; the depth of verification does not change."""
        self._rows[row] = Lookahead(options, prompt)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Return each row's whole tree; `depth` is ignored, because the window also generates the next n-grams."""
        drafts = [self._rows[row].draft(text) for row, text in enumerate(texts)]
        self._ends = [ends for _, ends in drafts]
        nodes = max(len(branches.parents) for branches, _ in drafts)
        tokens, parents = zip(*(branches.padded(nodes) for branches, _ in drafts), strict=True)
        return DraftTokens(torch.tensor(tokens, dtype=torch.int64, device=self._device), tree=Tree(np.array(parents)))

    def observe(self, outcome: VerifyOutcome) -> None:
        """Append the target's most probable next token to each column."""
        if not self._ends:
            return
        ends = pad_rows(self._ends, self._device)
        rows = torch.arange(len(ends), device=self._device).unsqueeze(1)
        for row, following in enumerate(outcome.logits[rows, ends].argmax(-1).tolist()):
            self._rows[row].learn(following[: len(self._ends[row])])
        self._ends = []

    def move_row(self, source: int, target: int, length: int) -> None:
        self._rows[target] = self._rows.pop(source)


DRAFTER = LookaheadDrafter
