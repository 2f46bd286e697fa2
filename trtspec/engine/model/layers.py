# SPDX-License-Identifier: Apache-2.0
"""The modules of a layer: weights, and what they do to a few rows of hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.matrix import Matrix
from trtspec.engine.model.moe import mix_experts

# What goes through the gate of an MLP, in TensorRT-LLM's words, whose gelu is the approximation by tanh.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swiglu": F.silu,
    "gelu": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class Linear:
    """A matrix, a bias, and what quantization does to the rows that go in; None where there is none."""

    matrix: Matrix
    bias: Tensor | None = None
    quantize: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows [n, in] to [n, out]."""
        return self.matrix.product(self._quantized(rows), self.bias)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, out] plus what the rows [n, in] are mapped to."""
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
        """Return residual [n, hidden] plus what the rows [n, hidden] are mapped to."""
        return self.down.add_to(residual, self._gated(rows))

    def _gated(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.activate(gate).mul_(up)


@dataclass(frozen=True)
class Mixture:
    """`top_k` of the experts for each row, as the router [experts, hidden] weighs them."""

    router: Tensor
    top_k: int
    experts: tuple[GatedMlp, ...]

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, hidden] plus what the rows [n, hidden] are mapped to."""
        return residual + mix_experts(rows, self.router, self.top_k, lambda number, mine: self.experts[number](mine))


@dataclass(frozen=True)
class Normed:
    """What `inner` gives is normed before it is added to the residual."""

    inner: Linear | GatedMlp
    norm: Callable[[Tensor], Tensor]

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, hidden] plus the norm of what the rows [n, in] are mapped to."""
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
    """The weights of one layer but the norm it begins with; q and k are ordered so that a rotary pair is adjacent.

    `post_norm` is that of what goes into the MLP. `qk_norm` [heads + kv_heads, head_size] multiplies the normed heads
    of q and k, `kv_scale` is the scale of an FP8 KV cache; both None where the model has none.
    """

    qkv: Linear
    qk_norm: Tensor | None
    kv_scale: Tensor | None
    dense: Linear | Normed
    post_norm: Tensor
    mlp: GatedMlp | Mixture | Normed


@dataclass(frozen=True)
class Layer(Block):
    """The weights of one layer of a model; `has_window` tells whether its attention reaches back by a window alone."""

    input_norm: Tensor
    has_window: bool
