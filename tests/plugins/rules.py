# SPDX-License-Identifier: Apache-2.0
"""A compiled library as an implementation for `tests.kernels.exactness`, on the host or on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.bit_exact import ChainBatch, ChainResult, DraftKind, TreeBatch, TreeResult
from trtspec.kernels.bit_exact.batch import VerifyBatch


@dataclass(frozen=True)
class Rules:
    """The results of a library for chains and trees.

    Args:
        library: the library.
        device: the device of the arrays.
        dtype: the dtype of logits, which must represent them exactly, or None to keep their dtype.
        padding: NaN entries after each row of logits, so that rows have any alignment and overruns are detected.
    """

    library: KernelLibrary
    device: str = "cpu"
    dtype: torch.dtype | None = None
    padding: int = 0

    def chain(self, batch: ChainBatch) -> ChainResult:
        """Verify chains."""
        return ChainResult(*map(_to_numpy, self.library.verify_chain(**self.arguments_of(batch))))

    def block(self, batch: ChainBatch) -> ChainResult:
        """Verify chains as a whole."""
        found = self.library.verify_chain(**self.arguments_of(batch), kernel="verify_block")
        return ChainResult(*map(_to_numpy, found))

    def arguments_of(self, batch: ChainBatch) -> dict[str, Any]:
        """Return the arguments of the library's function for chains."""
        return {**self._arrays(batch, "lengths"), "draft_kind": int(batch.draft_kind)}

    def tree(self, batch: TreeBatch) -> TreeResult:
        """Verify trees."""
        arrays = self._arrays(batch, "parents", "limits")
        settings = {"draft_kind": int(batch.draft_kind), "threshold": batch.threshold, "alpha": batch.alpha}
        result = self.library.verify_tree(**arrays, **settings, mode=int(batch.mode))
        return TreeResult(*map(_to_numpy, result))

    def _arrays(self, batch: VerifyBatch, *more: str) -> dict[str, Any]:
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
        """Return logits on the device, with the dtype and padding for the library."""
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
