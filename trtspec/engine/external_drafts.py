# SPDX-License-Identifier: Apache-2.0
"""External drafts (drafts sent with requests) as the tensors of a batch; missing and shorter rows are padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.engine.generation.request_state import RunningRequest


@dataclass(frozen=True)
class ExternalDrafts:
    """The external drafts of some rows: `tokens` [rows, width]; the first `lens[row]` of each row are valid."""

    batch: Sequence[RunningRequest]
    tokens: Tensor
    lens: list[int]

    @classmethod
    def of(cls, batch: Sequence[RunningRequest], device: torch.device) -> ExternalDrafts:
        """Create the tensors from the requests of a batch."""
        lens = [len(running.external_draft) for running in batch]
        width = max(lens)
        rows = [[*running.external_draft, *[0] * (width - len(running.external_draft))] for running in batch]
        return cls(batch, torch.tensor(rows, dtype=torch.int64, device=device), lens)

    def probs(self) -> Tensor | None:
        """Return the draft's distributions [rows, width, vocab], or None if no request has draft_logits.

        They are softmax(draft_logits), independent of the request's sampling options, as in TensorRT-LLM
        (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp@1d263f15). Rows without
        draft_logits are one-hot, which means deterministic tokens.
        """
        drawn_by = [running.request.draft_logits for running in self.batch]
        vocab = next((logits.shape[1] for logits in drawn_by if logits is not None), None)
        if vocab is None:
            return None
        device = self.tokens.device
        rows = torch.full((*self.tokens.shape, vocab), -torch.inf, device=device)
        rows.scatter_(-1, self.tokens.unsqueeze(-1), 0.0)
        for row, logits, length in zip(rows, drawn_by, self.lens, strict=True):
            if logits is not None:
                row[:length] = torch.tensor(logits[:length], device=device)
        return torch.softmax(rows, -1)

    def uniforms(self) -> Tensor:
        """Return [rows, width + 1] in [0, 1): one for each token, and one for the next token in the last column.

        Each request reads numbers only for its own tokens, so they do not depend on the other rows.
        """
        padded = np.zeros((len(self.batch), self.tokens.shape[1] + 1))
        for row, (running, length) in enumerate(zip(self.batch, self.lens, strict=True)):
            drawn = running.uniforms(length + 1)
            padded[row, :length], padded[row, -1] = drawn[:-1], drawn[-1]
        return torch.from_numpy(padded).to(self.tokens.device)
