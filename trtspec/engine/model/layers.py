# SPDX-License-Identifier: Apache-2.0
"""The modules of a layer: weights, and their forward pass for a few rows of hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.matrix import WeightMatrix
from trtspec.engine.model.moe import mix_experts

# Activations of an MLP's gate by TensorRT-LLM's names; its gelu is the tanh approximation.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swiglu": F.silu,
    "gelu": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class Linear:
    """A matrix with an optional bias and an optional quantization of its input."""

    matrix: WeightMatrix
    bias: Tensor | None = None
    quantize: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows [n, in] to [n, out]."""
        return self.matrix.product(self._quantized(rows), self.bias)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, out] plus the output for rows [n, in]."""
        return self.matrix.added(residual, self._quantized(rows), self.bias)

    def _quantized(self, rows: Tensor) -> Tensor:
        return rows if self.quantize is None else self.quantize(rows)


@dataclass(frozen=True)
class GatedMlp:
    """down(activate(a) * b), where a and b are the halves of `gate_up`'s output."""

    gate_up: Linear
    down: Linear
    activate: Callable[[Tensor], Tensor] = F.silu

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows [n, hidden] to [n, hidden]."""
        return self.down(self._gated(rows))

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, hidden] plus the output for rows [n, hidden]."""
        return self.down.add_to(residual, self._gated(rows))

    def _gated(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.activate(gate).mul_(up)


@dataclass(frozen=True)
class MixtureOfExperts:
    """A mixture of experts: each row uses its `top_k` experts by the router [experts, hidden]."""

    router: Tensor
    top_k: int
    experts: tuple[GatedMlp, ...]

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, hidden] plus the output for rows [n, hidden]."""
        return residual + mix_experts(rows, self.router, self.top_k, lambda number, part: self.experts[number](part))


@dataclass(frozen=True)
class NormalizedModule:
    """A module whose output is normalized before it is added to the residual."""

    inner: Linear | GatedMlp
    norm: Callable[[Tensor], Tensor]

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, hidden] plus the normalized output for rows [n, in]."""
        return residual + self.norm(self.inner(rows))


@dataclass(frozen=True)
class CappedHead:
    """A head whose logits x become cap * tanh(x / cap)."""

    head: Linear
    cap: float

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows [n, hidden] to logits [n, vocab]."""
        return self.head(rows).div_(self.cap).tanh_().mul_(self.cap)


@dataclass(frozen=True)
class Block:
    """The weights of one layer without its input norm; q and k are ordered so that rotary pairs are adjacent.

    `post_norm` is applied to the input of the MLP. `qk_norm` [heads + kv_heads, head_size] multiplies the normalized
    heads of q and k, and `kv_scale` is the scale of an FP8 KV cache; both are None if unused.
    """

    qkv: Linear
    qk_norm: Tensor | None
    kv_scale: Tensor | None
    dense: Linear | NormalizedModule
    post_norm: Tensor
    mlp: GatedMlp | MixtureOfExperts | NormalizedModule


@dataclass(frozen=True)
class DecoderLayer(Block):
    """The weights of one layer of a model; with `has_window` its attention is limited to a sliding window."""

    input_norm: Tensor
    has_window: bool
