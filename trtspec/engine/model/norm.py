# SPDX-License-Identifier: Apache-2.0
"""RMS norms, as fast as the dtype allows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Norm:
    """Norms rows of `width` numbers; the root of the width is in the weights, see `Weights`, where that is faster."""

    def __init__(self, width: int, epsilon: float, device: torch.device) -> None:
        self._epsilon = epsilon
        # x / rms(x) is x / hypot(|x|, this) times the root of the width
        self._offset = torch.tensor((width * epsilon) ** 0.5, device=device)

    def __call__(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Norm hidden [n, width] with a weight [width] as `Weights` loads it."""
        if hidden.dtype != torch.float32:
            return F.rms_norm(hidden, weight.shape, weight, self._epsilon)
        # the same in a third of the operations, each of which costs more than its arithmetic at batch 1
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden / torch.hypot(length, self._offset) * weight
