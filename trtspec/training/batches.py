# SPDX-License-Identifier: Apache-2.0
"""Padded batches of texts, in an order determined by a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import torch
from torch import Tensor

from trtspec.training.texts import TrainingText, pool

BATCH_TOKENS, MOST_ROWS = 2048, 32
STEP_ROWS = 8  # rows per optimizer step: more steps help more than larger ones


@dataclass(frozen=True)
class TrainingBatch:
    """Texts [rows, width], padded on the right, and the positions of the target's predictions for drafted tokens.

    `rows` and `positions` [n] locate every token after which a draft is evaluated: the next token belongs to a response
    and is not its first, which comes from the prefill. `depths` number them from 0 in each response.
    """

    texts: tuple[TrainingText, ...]
    tokens: Tensor

    @classmethod
    def of(cls, texts: Sequence[TrainingText], device: torch.device) -> TrainingBatch:
        """Return the batch of some texts, whose responses have at least two tokens."""
        width = max(len(text.tokens) for text in texts)
        padded = [[*text.tokens, *[0] * (width - len(text.tokens))] for text in texts]
        return cls(tuple(texts), torch.tensor(padded, device=device))

    @cached_property
    def counts(self) -> list[int]:
        """Return the number of places in each row."""
        return [len(span) for span in self._spans]

    @cached_property
    def _spans(self) -> list[range]:
        return [range(len(text.prompt), len(text.tokens) - 1) for text in self.texts]

    @cached_property
    def rows(self) -> Tensor:
        """Return the row of each place."""
        return self._tensor([row for row, span in enumerate(self._spans) for _ in span])

    @cached_property
    def positions(self) -> Tensor:
        """Return the position of each place in its row."""
        return self._tensor([position for span in self._spans for position in span])

    @cached_property
    def depths(self) -> Tensor:
        """Return the index of each position within its response."""
        return self._tensor([depth for span in self._spans for depth in range(len(span))])

    @cached_property
    def following(self) -> Tensor:
        """Return the token after each place."""
        return self.tokens[self.rows, self.positions + 1]

    @cached_property
    def grid(self) -> Tensor:
        """Return the places as [rows, maximum per row]; shorter rows are padded, see `is_valid`."""
        first = self._tensor([span.start for span in self._spans])
        numbers = torch.arange(max(self.counts), device=self.tokens.device)
        return (first.unsqueeze(1) + numbers).clamp(max=self.tokens.shape[1] - 1)

    @cached_property
    def is_valid(self) -> Tensor:
        """Return a mask of `grid` that selects the places, in the order of `positions`."""
        numbers = torch.arange(max(self.counts), device=self.tokens.device)
        return numbers < self._tensor(self.counts).unsqueeze(1)

    def tokens_after(self, step: int) -> Tensor:
        """Return the tokens [n] that are `step` after the places; undefined beyond the text."""
        return self.tokens[self.rows, (self.positions + step).clamp(max=self.tokens.shape[1] - 1)]

    def flat(self, back: int = 0) -> Tensor:
        """Return indices into rows * width of the places, shifted left by `back`."""
        return self.rows * self.tokens.shape[1] + self.positions - back

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.tokens.device)


def rows_per_batch(texts: Sequence[TrainingText]) -> int:
    """Return the number of these texts per batch."""
    longest = max(len(text.tokens) for text in texts)
    return max(1, min(MOST_ROWS, BATCH_TOKENS // longest, len(texts)))


def training_batches(texts: Sequence[TrainingText], rows: int, seed: int, first: int) -> Iterator[list[TrainingText]]:
    """Yield `rows` texts per step, endlessly from step `first`; each epoch uses each text once in a new order.

    Texts to keep are repeated as in `pool`.
    """
    taken = pool(texts)
    rows = min(rows, len(taken))
    steps = len(taken) // rows
    while True:
        epoch, start = divmod(first, steps)
        order = list(range(len(taken)))
        Random(f"{seed} {epoch}").shuffle(order)
        for step in range(start, steps):
            yield [taken[place] for place in order[step * rows : (step + 1) * rows]]
        first = (epoch + 1) * steps


def in_order(texts: Sequence[TrainingText], rows: int) -> Iterator[list[TrainingText]]:
    """Yield all texts once, in batches of `rows`."""
    for start in range(0, len(texts), rows):
        yield list(texts[start : start + rows])
