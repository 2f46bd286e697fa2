# SPDX-License-Identifier: Apache-2.0
"""RMS norm, optimized for float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Norm:
    """Normalizes rows of `width` numbers; for float32 the weights include the root of the width (see `norm_weight`)."""

    def __init__(self, width: int, epsilon: float, device: torch.device) -> None:
        self._epsilon = epsilon
        # x / rms(x) is x / hypot(|x|, this) times the root of the width
        self._offset = torch.tensor((width * epsilon) ** 0.5, device=device)

    def __call__(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Normalize hidden [n, width] with a weight [width] that was loaded by `Weights`."""
        if hidden.dtype != torch.float32:
            return F.rms_norm(hidden, weight.shape, weight, self._epsilon)
        # a third of the operations; at batch 1 the overhead of an operation exceeds its arithmetic
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden / torch.hypot(length, self._offset) * weight
