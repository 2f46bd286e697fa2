# SPDX-License-Identifier: Apache-2.0
"""The base of drafters that start from the target's hidden state at the end of the verified text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.engine.drafting.base import Drafter, DrafterConfig, VerifyOutcome
from trtspec.engine.model.decoder import FINAL


class HiddenStateDrafter(Drafter):
    """Keeps in `_hidden` [rows, hidden] the hidden state from which each text's last token was predicted.

    It is the hidden state after the final norm at the second-to-last token.
    """

    aux_layers = (FINAL,)

    def __init__(self, setup: DrafterConfig) -> None:
        target, rows = setup.target, setup.room.rows
        self._hidden = torch.zeros((rows, target.config.hidden_size), device=target.device, dtype=target.dtype)
        self._rows = torch.arange(rows, device=target.device)
        self._first_row, self._ends = 0, [0]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Store the end positions of the prompts."""
        self._first_row, self._ends = first_row, [len(prompt) - 1 for prompt in prompts]

    def read(self, features: Tensor, start: int) -> None:
        """Keep the hidden state at the end of each prompt that ends in this chunk."""
        for row, end in enumerate(self._ends):
            if start <= end < start + features.shape[1]:
                self._hidden[self._first_row + row] = features[row, end - start]

    def observe(self, outcome: VerifyOutcome) -> None:
        """Keep the hidden state of each row's last accepted token."""
        if outcome.features is None:
            raise ValueError("a drafter with aux_layers needs hidden states")
        rows = len(outcome.results)
        ends = torch.tensor([result.path[-1] if result.path else 0 for result in outcome.results])
        self._hidden[:rows] = outcome.features[self._rows[:rows], ends.to(self._rows.device)]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's hidden state."""
        self._hidden[target] = self._hidden[source]
