# SPDX-License-Identifier: Apache-2.0
"""Drafts that come with requests, as the tensors of a batch: rows without one, and shorter ones, are filled up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.engines.embedded.running import Running
from trtspec.kernels.sampling import Warp


@dataclass(frozen=True)
class Given:
    """The drafts of some rows: `tokens` [rows, width], of which `lens` count in each row."""

    batch: Sequence[Running]
    tokens: Tensor
    lens: list[int]

    @classmethod
    def of(cls, batch: Sequence[Running], device: torch.device) -> Given:
        """Return what came with the requests of a batch."""
        lens = [len(running.given) for running in batch]
        width = max(lens)
        rows = [[*running.given, *[0] * (width - len(running.given))] for running in batch]
        return cls(batch, torch.tensor(rows, dtype=torch.int64, device=device), lens)

    def probs(self, warp: Warp) -> Tensor | None:
        """Return what the tokens were drawn from [rows, width, vocab]; None where no request says so.

        A row that does not say has each token for sure, as if it had been chosen.
        """
        drawn = [running.request.draft_logits for running in self.batch]
        vocab = next((logits.shape[1] for logits in drawn if logits is not None), None)
        if vocab is None:
            return None
        padded = np.zeros((*self.tokens.shape, vocab), np.float32)
        for row, logits in enumerate(drawn):
            if logits is not None:
                padded[row, : self.lens[row]] = logits[: self.lens[row]]
        probs = warp.probs(torch.from_numpy(padded).to(self.tokens.device))
        sure = torch.zeros_like(probs).scatter_(-1, self.tokens.unsqueeze(-1), 1.0)
        says = torch.tensor([logits is not None for logits in drawn], device=probs.device)
        return torch.where(says.view(-1, 1, 1), probs, sure)

    def uniforms(self) -> Tensor:
        """Return [rows, width + 1] in [0, 1): one for each token, and in the last column one for the token after them.

        Each request draws for its own tokens alone, so that its numbers do not depend on its neighbours.
        """
        padded = np.zeros((len(self.batch), self.tokens.shape[1] + 1))
        for row, (running, length) in enumerate(zip(self.batch, self.lens, strict=True)):
            drawn = running.uniforms(length + 1)
            padded[row, :length], padded[row, -1] = drawn[:-1], drawn[-1]
        return torch.from_numpy(padded).to(self.tokens.device)
