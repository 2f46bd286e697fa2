# SPDX-License-Identifier: Apache-2.0
"""One prompt's way through one layer of a source checkpoint, with transformers' operations, order and dtypes.

`layers` computes the same from fused and rearranged weights, which is faster and rounds elsewhere; a quantizer that
runs the model itself sees the bits that are seen here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.torch_engine.model.moe import mix_experts
from trtspec.torch_engine.model.rope import attention_factor, frequencies

# What is measured of a module: what goes into its matrix, and what an attention puts into its cache, keys rotated.
INPUTS, KEYS, VALUES = "inputs", "keys", "values"


class Peaks:
    """The largest magnitude found of each (kind, module), in the order of the computation; NaN is the largest."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Tensor] = {}

    def see(self, kind: str, module: str, values: Tensor) -> None:
        """Take in values of any shape."""
        self._lift((kind, module), values.abs().amax())

    def merge(self, other: Peaks) -> None:
        """Take in what others have seen."""
        for at, peak in other.found.items():
            self._lift(at, peak)

    def _lift(self, at: tuple[str, str], peak: Tensor) -> None:
        self.found[at] = torch.maximum(self.found.get(at, peak), peak)


@dataclass
class LayerPass:
    """A layer about to be passed once, and the peaks met on the way.

    `prefix` is that of the layer's modules. `weights` are by the target's name in the layer, as the source's parts:
    three matrices [out, in] for "attention.qkv.weight". `rotation` is cosines and sines, [positions, head_size] each,
    of at least as many positions as the prompt has.
    """

    config: ModelConfig
    prefix: str
    weights: dict[str, list[Tensor]]
    rotation: tuple[Tensor, Tensor]
    peaks: Peaks = field(default_factory=Peaks)

    def run(self, hidden: Tensor) -> Tensor:
        """Return what the layer makes of hidden states [1, tokens, hidden_size]."""
        hidden = hidden + self._attend(self._norm(hidden, "input_layernorm"))
        mlp = self._mix if self.config.num_experts else self._mlp
        return hidden + mlp(self._norm(hidden, "post_layernorm"))

    def _attend(self, hidden: Tensor) -> Tensor:
        config, width = self.config, hidden.shape[1]
        projected = self._linear("attention.qkv", hidden)
        queries, keys, values = (rows.view(1, width, -1, config.head_size) for rows in projected)
        if config.qk_norm:
            queries = self._norm(queries, "attention.q_layernorm")
            keys = self._norm(keys, "attention.k_layernorm")
        cosines, sines = (table[:width] for table in self.rotation)
        queries = _rotate(queries.transpose(1, 2), cosines, sines)
        keys, values = _rotate(keys.transpose(1, 2), cosines, sines), values.transpose(1, 2)
        self._see(KEYS, "attention", keys)
        self._see(VALUES, "attention", values)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            is_causal=True,
            scale=config.head_size**-0.5,
            enable_gqa=config.num_heads > config.num_kv_heads,
        )
        return self._linear("attention.dense", mixed.transpose(1, 2).reshape(1, width, -1))[0]

    def _mlp(self, hidden: Tensor) -> Tensor:
        (activated,) = self._linear("mlp.fc", hidden)
        (linear,) = self._linear("mlp.gate", hidden)
        return self._linear("mlp.proj", F.silu(activated) * linear)[0]

    def _mix(self, hidden: Tensor) -> Tensor:
        (router,) = self.weights["mlp.router.weight"]
        mixed = mix_experts(hidden[0], router, self.config.experts_per_token, self._expert)
        return mixed.unsqueeze(0)

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        self._see(INPUTS, "mlp.fc", rows)
        linear, activated = self.weights["mlp.fc.weight"][2 * number : 2 * number + 2]
        inner = F.silu(F.linear(rows, activated)) * F.linear(rows, linear)
        self._see(INPUTS, "mlp.proj", inner)
        return F.linear(inner, self.weights["mlp.proj.weight"][number])

    def _linear(self, module: str, rows: Tensor) -> list[Tensor]:
        """Return what each of the module's matrices makes of `rows`."""
        self._see(INPUTS, module, rows)
        matrices = self.weights[f"{module}.weight"]
        biases = self.weights.get(f"{module}.bias", [None] * len(matrices))
        return [F.linear(rows, matrix, bias) for matrix, bias in zip(matrices, biases, strict=True)]

    def _norm(self, rows: Tensor, module: str) -> Tensor:
        return norm(rows, self.weights[f"{module}.weight"][0], self.config.norm_epsilon)

    def _see(self, kind: str, module: str, values: Tensor) -> None:
        self.peaks.see(kind, self.prefix + module, values)


def norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows [..., n] divided by their root mean square, in float32, and multiplied by a weight [n]."""
    exact = rows.float()
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * exact.to(rows.dtype)


def rotation(config: ModelConfig, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for positions 0 to `width` - 1, [width, head_size] each: both halves of a head alike."""
    angles = torch.outer(torch.arange(width, dtype=torch.float32), frequencies(config)).repeat(1, 2).to(device)
    factor = attention_factor(config)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat((-second, first), -1) * sines
