# SPDX-License-Identifier: Apache-2.0
"""The target as a teacher: computes its logits and hidden states for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.device import choose_device, compute_dtype
from trtspec.engine.model.decoder import Decoder
from trtspec.training.batches import rows_per_batch
from trtspec.training.texts import TrainingText


class Teacher:
    """A converted checkpoint in the torch engine, with memory for one batch of the given texts."""

    def __init__(self, root: Path, texts: Sequence[TrainingText]) -> None:
        device, checkpoint = choose_device("auto"), load_checkpoint(root)
        longest = max(len(text.tokens) for text in texts)
        dtype = compute_dtype("auto", device, checkpoint)
        self.rows = rows_per_batch(texts)
        self.model = Decoder(checkpoint, self.rows, longest, device, dtype)

    @torch.no_grad()
    def read(self, tokens: Tensor, at: Tensor, aux_layers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return logits [len(at), vocab] at flat indices, and features [rows, width, aux_layers * hidden], in float32.

        Without `aux_layers` the features are None.
        """
        rows, width = tokens.shape
        window = self.model.windows.chain([0] * rows, width)
        logits, features = self.model.forward_with_features(tokens, window, aux_layers, at)
        return logits.float(), None if features is None else features.float().view(rows, width, -1)
