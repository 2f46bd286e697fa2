# SPDX-License-Identifier: Apache-2.0
"""A compiled library as the implementations that `tests.kernels.exactness` checks, on the host or on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.bit_exact import ChainBatch, DraftKind, ExactChainResult, ExactTreeResult, TreeBatch
from trtspec.kernels.bit_exact.batch import Batch


@dataclass(frozen=True)
class Rules:
    """What a library says of chains and trees.

    Args:
        library: that is asked.
        device: where arrays are brought.
        dtype: of logits, which have to be exact in it; None for what they are.
        padding: entries behind each row of logits, NaN, so that rows begin anywhere and reading further is seen.
    """

    library: KernelLibrary
    device: str = "cpu"
    dtype: torch.dtype | None = None
    padding: int = 0

    def chain(self, batch: ChainBatch) -> ExactChainResult:
        """Verify chains."""
        return ExactChainResult(*map(_to_numpy, self.library.verify_chain(**self.arguments_of(batch))))

    def block(self, batch: ChainBatch) -> ExactChainResult:
        """Verify chains as a whole."""
        found = self.library.verify_chain(**self.arguments_of(batch), kernel="verify_block")
        return ExactChainResult(*map(_to_numpy, found))

    def arguments_of(self, batch: ChainBatch) -> dict[str, Any]:
        """Return what the library's own function is called with for chains."""
        return {**self._arrays(batch, "lengths"), "draft_kind": int(batch.draft_kind)}

    def tree(self, batch: TreeBatch) -> ExactTreeResult:
        """Verify trees."""
        arrays = self._arrays(batch, "parents", "limits")
        settings = {"draft_kind": int(batch.draft_kind), "threshold": batch.threshold, "alpha": batch.alpha}
        result = self.library.verify_tree(**arrays, **settings, mode=int(batch.mode))
        return ExactTreeResult(*map(_to_numpy, result))

    def _arrays(self, batch: Batch, *more: str) -> dict[str, Any]:
        logits = {"target", "draft"} if batch.draft_kind == DraftKind.LOGITS else {"target"}
        names = ("target", "tokens", "draft", "draft_column", "temperature", "top_k", "top_p", "uniforms", *more)
        placed = {}
        for name in names:
            array = getattr(batch, name)
            if array is not None:
                array = self._place_logits(array) if name in logits else self._place(np.ascontiguousarray(array))
            placed[name] = array
        return placed

    def _place(self, array: np.ndarray[Any, Any]) -> Any:
        return array if self.device == "cpu" else torch.from_numpy(array).to(self.device)

    def _place_logits(self, array: np.ndarray[Any, Any]) -> Any:
        """Return logits where, and in the dtype, that the library is given them."""
        if self.dtype is None and self.padding == 0:
            return array if self.device == "cpu" else self._place(np.ascontiguousarray(array))
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        shape = (*array.shape[:-1], array.shape[-1] + self.padding)
        padded = torch.full(shape, torch.nan, dtype=self.dtype or tensor.dtype, device=self.device)
        padded[..., : array.shape[-1]] = tensor.to(self.device)
        return padded[..., : array.shape[-1]]


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = array.cpu().numpy() if isinstance(array, torch.Tensor) else array
    return result
