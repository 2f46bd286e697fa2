# SPDX-License-Identifier: Apache-2.0
"""Modules of a layer: weights, and their forward pass for a few rows of hidden states.

The bits of a row must not depend on the number of other rows, or text with drafts would differ from text without them
wherever two tokens are almost equally likely. On a CPU, weights are packed for oneDNN. MKL, which torch.mm calls, takes
three times as long for the six rows of a verify step as for one row, and rounds them differently. oneDNN takes hardly
longer, and rounds them alike (except for single rows of small matrices). The operators are those that torch's compiler
emits for frozen weights; the torch version is pinned. On a GPU, cuBLAS chooses its kernel, and with it the order of
sums, by the number of rows, so all products have the same number of rows.

FP8 is simulated: values are rounded to float8_e4m3 as in TensorRT-LLM and then multiplied by a GEMM of the compute
dtype. A model's output therefore equals the output of its FP8 engine up to the rounding of sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import pad

E4M3_MAX = 448.0
# TensorRT-LLM's defaults for per-row scales (tensorrt_llm/models/modeling_utils.py QuantConfig.clamp_val,
# tensorrt_llm/quantization/functional.py quantize_fp8_per_token): larger values are clamped, smaller scales are raised
CLAMP = 1200.0
LEAST_SCALE = 1.0 / (E4M3_MAX * 512.0)
# Row counts used with oneDNN, which generates and caches code for each count and weight shape: 0.6 MB, 0.3 ms.
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
_PADDED = [0, *(next(count for count in COUNTS if count >= rows) for rows in range(1, COUNTS[-1]))]
# Rows of a product on a GPU; benchmarks/experiments/first-gpu-run.md has the cost on an H200.
CHUNK = 128
PACKED_FROM = 1 << 17  # weights; the overhead of some 10 us per oneDNN call does not pay off for smaller matrices
# Activations of an MLP's gate by TensorRT-LLM's names; its gelu is the tanh approximation.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swiglu": F.silu,
    "gelu": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


def round_to_e4m3(values: Tensor, scale: Tensor) -> Tensor:
    """Return float8_e4m3(values / scale) * scale; `scale` is float32, and values beyond 448 * scale are clamped."""
    scaled = (values.float() / scale).clamp_(-E4M3_MAX, E4M3_MAX)
    return dequantize(scaled.to(torch.float8_e4m3fn), scale, values.dtype)


def round_rows_to_e4m3(values: Tensor) -> Tensor:
    """Round values [tokens, columns] to float8_e4m3, with a scale per token from its largest magnitude."""
    clamped = values.clamp(-CLAMP, CLAMP)
    largest = clamped.float().abs().amax(-1, keepdim=True)
    # divide by a tensor: for a Python number, a GPU multiplies by its reciprocal, which changes the scale's last bit
    most = largest.new_full((), E4M3_MAX)
    return round_to_e4m3(clamped, (largest / most).clamp_min_(LEAST_SCALE))


def dequantize(quantized: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the FP8 values times `scale` (float32, broadcast) in `dtype`."""
    return quantized.float().mul_(scale).to(dtype)


class Norm:
    """RMS norm of `width` elements; float32 weights include the factor sqrt(width) (see `WeightLoader.norm`)."""

    def __init__(self, width: int, epsilon: float, device: torch.device) -> None:
        self._epsilon = epsilon
        # x / rms(x) is x / hypot(|x|, this) times the root of the width
        self._offset = torch.tensor((width * epsilon) ** 0.5, device=device)

    def __call__(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        """Normalize hidden [n, width] with a weight [width] from `WeightLoader.norm`; do nothing if it is None."""
        if weight is None:
            return hidden
        if hidden.dtype != torch.float32:
            return F.rms_norm(hidden, weight.shape, weight, self._epsilon)
        # a third of the operations; at batch 1 the overhead of an operation exceeds its arithmetic
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden / torch.hypot(length, self._offset) * weight


def mix_experts(hidden: Tensor, router: Tensor, top_k: int, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Return the weighted sum [tokens, hidden] of the outputs of each token's `top_k` experts.

    Args:
        hidden: [tokens, hidden].
        router: [experts, hidden]; the logits are computed in its dtype, which is float32 in TensorRT-LLM.
        top_k: the number of experts per token; their weights add up to one.
        expert: maps (number, rows [n, hidden]) to rows of the same shape; called in order for experts in use.
    """
    logits = _plain_matrix(router.t()).product(hidden.to(router.dtype), None)
    weights, picked = logits.float().softmax(-1).topk(top_k, -1)
    weights /= weights.sum(-1, keepdim=True)
    mixed = torch.zeros_like(hidden)
    for number in sorted(set(picked.flatten().tolist())):
        ranks, tokens = torch.where(picked.t() == number)
        rows = expert(number, hidden[tokens]) * weights[tokens, ranks, None]
        mixed.index_add_(0, tokens, rows.to(hidden.dtype))
    return mixed


@dataclass(frozen=True)
class WeightMatrix:
    """A weight that maps rows [n, in] to [n, out], stored as a plain matrix [in, out] in this base class."""

    stored: Tensor

    @property
    def weight(self) -> Tensor:
        """Return the weight [out, in], which may be a copy."""
        return self.stored.t()

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Map rows [n, in] to [n, out], adding `bias` [out] if given."""
        return torch.mm(rows, self.stored) if bias is None else torch.addmm(bias, rows, self.stored)

    def added(self, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Return residual [n, out] plus the product for rows [n, in]."""
        total = torch.addmm(residual, rows, self.stored)
        return total if bias is None else total.add_(bias)

    def taken(self, count: int) -> int:
        """Return the number of rows computed for a product of `count` rows; passing that many rows avoids a copy."""
        return count


class PackedMatrix(WeightMatrix):
    """A weight in oneDNN's layout, multiplied by a number of rows in COUNTS; other numbers are padded or split."""

    @property
    def weight(self) -> Tensor:
        return self.stored.to_dense()

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        count = len(rows)
        if count in COUNTS:
            return self._product(rows, bias)
        found = rows.new_empty((count, self.stored.shape[0]))
        for start in range(0, count, COUNTS[-1]):
            part = rows[start : start + COUNTS[-1]]
            padding = self.taken(len(part)) - len(part)
            found[start : start + len(part)] = self._product(pad(part, (0, 0, 0, padding)), bias)[: len(part)]
        return found

    def added(self, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        if len(rows) not in COUNTS:
            return self.product(rows, bias).add_(residual)
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, self.stored, bias, "add")
        return found

    def taken(self, count: int) -> int:
        whole, rest = divmod(count, COUNTS[-1])
        return whole * COUNTS[-1] + _PADDED[rest]

    def _product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, self.stored, bias, "none", [], "")
        return found


class ChunkedMatrix(WeightMatrix):
    """A plain weight that is always multiplied by CHUNK rows; fewer rows are padded, more are split."""

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        return _joined([super(ChunkedMatrix, self).product(part, bias) for part in self._chunks(rows)], len(rows))

    def added(self, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        parts = zip(self._chunks(residual), self._chunks(rows), strict=True)
        return _joined([super(ChunkedMatrix, self).added(*pair, bias) for pair in parts], len(rows))

    def taken(self, count: int) -> int:
        return -(-count // CHUNK) * CHUNK

    def _chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        padding = self.taken(len(rows)) - len(rows)
        return torch.split(pad(rows, (0, 0, 0, padding)) if padding else rows, CHUNK)


def _joined(parts: list[Tensor], count: int) -> Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]


def make_matrix(weight: Tensor, *, is_shared: bool = False) -> WeightMatrix:
    """Return a weight [out, in] in the fastest layout on its device.

    With `is_shared`, the plain layout is a view of `weight` instead of a copy.
    """
    if weight.device.type == "cpu" and weight.numel() >= PACKED_FROM and weight.dtype in _packable():
        return PackedMatrix(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()))
    return _plain_matrix(weight.t() if is_shared else weight.t().contiguous())


def _plain_matrix(stored: Tensor) -> WeightMatrix:
    return (ChunkedMatrix if stored.is_cuda else WeightMatrix)(stored)


def _packable() -> tuple[torch.dtype, ...]:
    onednn = torch.backends.mkldnn
    if not (onednn.enabled and onednn.is_available()):  # type: ignore[no-untyped-call]
        return ()
    in_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (torch.float32, torch.bfloat16) if in_bfloat16 else (torch.float32,)


class Sublayer(ABC):
    """Interface of a sublayer, which maps rows of hidden states [n, in] to [n, out]."""

    @abstractmethod
    def __call__(self, rows: Tensor) -> Tensor:
        """Return the output [n, out] for rows [n, in]."""

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Return residual [n, out] plus the output for rows [n, in]."""
        return residual + self(rows)


@dataclass(frozen=True)
class Linear(Sublayer):
    """A matrix with an optional bias and an optional quantization of its input."""

    matrix: WeightMatrix
    bias: Tensor | None = None
    quantize: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        return self.matrix.product(self._quantized(rows), self.bias)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        return self.matrix.added(residual, self._quantized(rows), self.bias)

    def _quantized(self, rows: Tensor) -> Tensor:
        return rows if self.quantize is None else self.quantize(rows)


@dataclass(frozen=True)
class GatedMlp(Sublayer):
    """Gated MLP: down(activate(a) * b), where a and b are the halves of `gate_up`'s output."""

    gate_up: Linear
    down: Linear
    activate: Callable[[Tensor], Tensor] = F.silu

    def __call__(self, rows: Tensor) -> Tensor:
        return self.down(self._gated(rows))

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        return self.down.add_to(residual, self._gated(rows))

    def _gated(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.activate(gate).mul_(up)


@dataclass(frozen=True)
class MixtureOfExperts(Sublayer):
    """A mixture of experts: each row uses the `top_k` experts with the largest logits of `router` [experts, hidden]."""

    router: Tensor
    top_k: int
    experts: tuple[GatedMlp, ...]

    def __call__(self, rows: Tensor) -> Tensor:
        return mix_experts(rows, self.router, self.top_k, lambda number, part: self.experts[number](part))


@dataclass(frozen=True)
class NormalizedSublayer(Sublayer):
    """A sublayer whose output is normalized before it is added to the residual."""

    inner: Sublayer
    norm: Callable[[Tensor], Tensor]

    def __call__(self, rows: Tensor) -> Tensor:
        return self.norm(self.inner(rows))


@dataclass(frozen=True)
class ScaledSublayer(Sublayer):
    """A sublayer whose output is multiplied by a factor before it is added to the residual."""

    inner: Sublayer
    factor: float

    def __call__(self, rows: Tensor) -> Tensor:
        return self.inner(rows) * self.factor


@dataclass(frozen=True)
class AdjustedHead:
    """LM head whose logits x are multiplied by a factor and, unless `cap` is 0, replaced by cap * tanh(x / cap)."""

    head: Linear
    factor: float
    cap: float

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows [n, hidden] to logits [n, vocab]."""
        logits = self.head(rows)
        if self.factor != 1.0:
            logits.mul_(self.factor)
        return logits.div_(self.cap).tanh_().mul_(self.cap) if self.cap else logits


@dataclass(frozen=True)
class Block:
    """The weights of one layer without its input norm; q and k are ordered so that rotary pairs are adjacent.

    `post_norm` is applied to the input of the MLP. `qk_norm` [heads + kv_heads, head_size] multiplies the normalized
    heads of q and k, and `kv_scale` is the scale of an FP8 KV cache; each is None if unused.
    """

    qkv: Linear
    qk_norm: Tensor | None
    kv_scale: Tensor | None
    dense: Sublayer
    post_norm: Tensor | None
    mlp: Sublayer


@dataclass(frozen=True)
class DecoderLayer(Block):
    """The weights of one layer of a model; with `has_window` its attention is limited to a sliding window."""

    input_norm: Tensor | None
    has_window: bool
