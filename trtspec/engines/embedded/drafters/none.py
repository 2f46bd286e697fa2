# SPDX-License-Identifier: Apache-2.0
"""Drafts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trtspec.engines.embedded.drafters.base import Draft, Room
from trtspec.kernels.chain import Warp


class NoDrafter:
    """The baseline: every step is one token of the target."""

    def __init__(self, root: Path | None, room: Room) -> None:
        self._device = room.device

    def prefill(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Need nothing of a prompt."""

    def propose(
        self, texts: Sequence[Sequence[int]], draft_len: int, warp: Warp | None, uniforms: Tensor | None
    ) -> Draft:
        """Return an empty chain for each row."""
        return Draft(torch.empty((len(texts), 0), dtype=torch.int64, device=self._device), None)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Keep no rows."""


DRAFTER = NoDrafter
