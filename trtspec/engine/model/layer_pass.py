# SPDX-License-Identifier: Apache-2.0
"""Forward pass of one layer of a source checkpoint, with transformers' operations, order and dtypes.

`layers` computes the same from fused and rearranged weights, which is faster but rounds differently. A quantizer that
runs the source model observes the same bits as this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.model.layers import ACTIVATIONS, mix_experts
from trtspec.engine.model.positions import attention_factor, frequencies

# Kinds of measured values: the inputs of a module's matrix, and an attention's cached keys (rotated) and values.
INPUTS, KEYS, VALUES = "inputs", "keys", "values"


class AmaxObserver:
    """Largest magnitude of each (kind, module), in the order of the computation; NaN counts as the largest."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Tensor] = {}

    def see(self, kind: str, module: str, values: Tensor) -> None:
        self._lift((kind, module), values.abs().amax())

    def merge(self, other: AmaxObserver) -> None:
        for at, peak in other.found.items():
            self._lift(at, peak)

    def _lift(self, at: tuple[str, str], peak: Tensor) -> None:
        self.found[at] = torch.maximum(self.found.get(at, peak), peak)


@dataclass
class LayerPass:
    """Forward pass of one layer, which collects the largest magnitudes in `peaks`.

    `prefix` is the prefix of the layer's module names. `weights` are by tensor name within the layer, in the layout of
    the source: three matrices [out, in] for "attention.qkv.weight", or the one matrix that stacks them. `rotation` is
    cosines and sines, [positions, rotary_size] each, for at least as many positions as the prompt has. `plus` is added
    to the stored weights of norms.
    """

    config: ModelConfig
    prefix: str
    weights: dict[str, list[Tensor]]
    rotation: tuple[Tensor, Tensor]
    has_window: bool = False
    plus: float = 0.0
    peaks: AmaxObserver = field(default_factory=AmaxObserver)

    def run(self, hidden: Tensor) -> Tensor:
        """Return the layer's output [1, tokens, hidden_size] for hidden states of the same shape."""
        mlp = self._mix if self.config.num_experts else self._mlp
        attention_in, attention_out, mlp_in, mlp_out = self.config.sublayer_norms
        mixed = self._attend(self._norm(hidden, attention_in))
        hidden = hidden + self._written(mixed, attention_out)
        return hidden + self._written(mlp(self._norm(hidden, mlp_in)), mlp_out)

    def _attend(self, hidden: Tensor) -> Tensor:
        config, width = self.config, hidden.shape[1]
        queries, keys, values = self._project(hidden)
        if config.qk_norm:
            queries = self._norm_heads(queries, "attention.q_layernorm")
            keys = self._norm_heads(keys, "attention.k_layernorm")
        queries, keys, values = (rows.view(1, width, -1, config.head_size) for rows in (queries, keys, values))
        cosines, sines = (table[:width] for table in self.rotation)
        queries = rotate(queries.transpose(1, 2), cosines, sines)
        keys, values = rotate(keys.transpose(1, 2), cosines, sines), values.transpose(1, 2)
        self._see(KEYS, "attention", keys)
        self._see(VALUES, "attention", values)
        reach = config.sliding_window if self.has_window and width > config.sliding_window else 0
        mixed = attend_heads(queries, keys, values, config, reach)
        return self._linear("attention.dense", mixed.transpose(1, 2).reshape(1, width, -1))[0]

    def _project(self, hidden: Tensor) -> Sequence[Tensor]:
        projected = self._linear("attention.qkv", hidden)
        if len(projected) == 3:
            return projected
        heads = (self.config.num_heads, self.config.num_kv_heads, self.config.num_kv_heads)
        rows = torch.split_with_sizes(projected[0], [count * self.config.head_size for count in heads], -1)
        return [part.contiguous() for part in rows]

    def _mlp(self, hidden: Tensor) -> Tensor:
        activated, *rest = self._linear("mlp.fc", hidden)
        if self.config.hidden_act == "swiglu":
            activated, linear = activated.chunk(2, -1) if not rest else (rest[0], activated)
        else:
            (linear,) = self._linear("mlp.gate", hidden)
        return self._linear("mlp.proj", ACTIVATIONS[self.config.hidden_act](activated) * linear)[0]

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
        """Return the output of each of the module's matrices for `rows`, and record the largest input."""
        self._see(INPUTS, module, rows)
        matrices = self.weights[f"{module}.weight"]
        biases = self.weights.get(f"{module}.bias", [None] * len(matrices))
        return [F.linear(rows, matrix, bias) for matrix, bias in zip(matrices, biases, strict=True)]

    def _written(self, rows: Tensor, module: str) -> Tensor:
        """Return a sublayer's output, normalized and scaled, as it is added to the residual."""
        rows, factor = self._norm(rows, module), self.config.residual_multiplier
        return rows * factor if factor != 1.0 else rows

    def _norm_heads(self, rows: Tensor, module: str) -> Tensor:
        width = rows.shape[-1] if self.config.qk_norm_over_heads else self.config.head_size
        return self._norm(rows.view(*rows.shape[:-1], -1, width), module).flatten(-2)

    def _norm(self, rows: Tensor, module: str) -> Tensor:
        """Return rows normalized by a module; unchanged if `module` is ""."""
        if not module:
            return rows
        return norm(rows, self.weights[f"{module}.weight"][0], self.config.norm_epsilon, self.plus)

    def _see(self, kind: str, module: str, values: Tensor) -> None:
        self.peaks.see(kind, self.prefix + module, values)


def attend_heads(queries: Tensor, keys: Tensor, values: Tensor, config: ModelConfig, reach: int) -> Tensor:
    """Return the causal attention output; `reach` limits the keys per query (sliding window), 0 means no limit.

    Queries are [1, heads, tokens, head_size]; keys and values have `num_kv_heads` heads.
    """
    group, scale = config.num_heads // config.num_kv_heads, config.score_scale
    if not reach and not config.attention_cap:
        is_grouped = group > 1
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale, enable_gqa=is_grouped)
    width = queries.shape[2]
    seen = torch.ones(width, width, dtype=torch.bool, device=queries.device).tril().triu(1 - (reach or width))
    keys, values = (heads.repeat_interleave(group, 1) for heads in (keys, values))
    if not config.attention_cap:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale)
    return _mix_capped(queries, keys, values, config, seen)


def _mix_capped(queries: Tensor, keys: Tensor, values: Tensor, config: ModelConfig, seen: Tensor) -> Tensor:
    scores = torch.matmul(queries, keys.mT) * config.score_scale
    scores = torch.tanh(scores / config.attention_cap) * config.attention_cap
    hidden = torch.zeros(seen.shape, dtype=scores.dtype, device=scores.device)
    scores = scores + hidden.masked_fill_(~seen, torch.finfo(scores.dtype).min)
    return torch.matmul(scores.softmax(-1, torch.float32).to(queries.dtype), values)


def norm(rows: Tensor, weight: Tensor, epsilon: float, plus: float = 0.0) -> Tensor:
    """Return rows [..., n] divided by their root mean square, in float32, and multiplied by a weight [n].

    If `plus` is added to the weight, the product is computed in float32 too.
    """
    exact = rows.float()
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + epsilon)
    return (exact * (plus + weight.float())).to(rows.dtype) if plus else weight * exact.to(rows.dtype)


def embedding_scale(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return the factor for embeddings, or None if it is 1.

    As in transformers, only the square root of the hidden size is rounded to `dtype`.
    """
    if config.scaled_embedding:
        return torch.tensor(config.hidden_size**0.5, dtype=dtype, device=device)
    factor = config.embedding_multiplier
    return torch.tensor(factor, device=device) if factor != 1.0 else None


def rotation(config: ModelConfig, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for positions 0 to `width` - 1, [width, rotary_size] each; both halves are equal."""
    angles = torch.outer(torch.arange(width, dtype=torch.float32), frequencies(config)).repeat(1, 2).to(device)
    factor = attention_factor(config)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return heads [..., positions, head_size] rotated by position; elements beyond rotary_size are unchanged."""
    size = cosines.shape[-1]
    turning, rest = heads[..., :size], heads[..., size:]
    first, second = turning.chunk(2, -1)
    turned = turning * cosines + torch.cat((-second, first), -1) * sines
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
