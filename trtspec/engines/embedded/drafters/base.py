# SPDX-License-Identifier: Apache-2.0
"""What a drafter does for the engine's step, whatever it drafts with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from trtspec.kernels.chain import Warp


@dataclass(frozen=True)
class Room:
    """The place a drafter gets: a KV cache of `rows` x `max_len` on `device`, computing in `dtype`."""

    rows: int
    max_len: int
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class Draft:
    """A chain for each row: `tokens` [rows, draft_len]; `probs` [rows, draft_len, vocab] they were drawn from.

    `probs` is None when all rows are greedy, and for tokens that were not drawn but looked up.
    """

    tokens: Tensor
    probs: Tensor | None


class Drafter(Protocol):
    """Proposes tokens for the rows of a batch. Rows are the engine's: row i is request i of the running batch.

    A module of this folder joins by defining its class as `DRAFTER`; its constructor takes the draft checkpoint's
    directory (None where the method has none) and a Room.
    """

    def __init__(self, root: Path | None, room: Room) -> None: ...

    def prefill(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Take in the prompts of new requests, which become rows `first_row`, `first_row` + 1, ..."""

    def propose(
        self, texts: Sequence[Sequence[int]], draft_len: int, warp: Warp | None, uniforms: Tensor | None
    ) -> Draft:
        """Draft `draft_len` tokens after each text (prompt and output so far, at least two tokens).

        With `warp` and `uniforms` [rows, draft_len] tokens are drawn the way the target's are, else chosen greedily.
        """

    def move_row(self, source: int, target: int, length: int) -> None:
        """Let row `source`, `length` tokens long, become row `target`."""
