# SPDX-License-Identifier: Apache-2.0
"""The transformer: a converted TensorRT-LLM checkpoint as torch tensors, its KV cache, and its forward pass.

Rows of a batch may have different lengths; everything that depends only on positions is in a `Window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.trtllm import EMBEDDING, FINAL_NORM, TrtllmCheckpoint
from trtspec.engine.model.layer_pass import embedding_scale
from trtspec.engine.model.layers import Block, DecoderLayer, Norm, round_to_e4m3
from trtspec.engine.model.pass_graphs import PassGraphs
from trtspec.engine.model.positions import Window, Windows
from trtspec.engine.model.weights import DecoderWeights


class KVCache:
    """Preallocated keys and values of all layers in one tensor, [2 * layers, rows * max_len, kv_heads, head_size].

    The caller tracks the length of each row. No rollback is needed: the slots of rejected tokens are overwritten.
    """

    def __init__(self, config: ModelConfig, rows: int, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        self.max_len = max_len
        heads = (config.num_kv_heads, config.head_size)
        self._all = torch.zeros((2 * config.num_layers, rows * max_len, *heads), device=device, dtype=dtype)
        self._flat = self._all.unbind()
        by_row = self._all.view(2 * config.num_layers, rows, max_len, *heads)
        self._by_row = by_row.transpose(2, 3).unbind()

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, each [len(slots), kv_heads, head_size], in the given slots of a layer."""
        self._flat[2 * layer].index_copy_(0, slots, keys)
        self._flat[2 * layer + 1].index_copy_(0, slots, values)

    def read(self, layer: int, first_row: int, rows: int, key_len: int) -> tuple[Tensor, Tensor]:
        """Return views of a layer's keys and values, each [rows, kv_heads, key_len, head_size]."""
        where = (slice(first_row, first_row + rows), slice(None), slice(key_len))
        return self._by_row[2 * layer][where], self._by_row[2 * layer + 1][where]

    def compact(self, moves: list[tuple[int, int, int]]) -> None:
        """Apply moves (row, from position, to position) in all layers; all are read before any is written."""
        if moves:
            places = torch.tensor(moves, device=self._all.device)
            base = places[:, 0] * self.max_len
            self._all.index_copy_(1, base + places[:, 2], self._all.index_select(1, base + places[:, 1]))

    def row(self, row: int, length: int) -> Tensor:
        """Return a view of the first `length` positions of a row, [2 * layers, length, kv_heads, head_size]."""
        start = row * self.max_len
        return self._all[:, start : start + length]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of row `source` to row `target`."""
        self.row(target, length).copy_(self.row(source, length))


def attend(qkv: Tensor, layer: Block, number: int, window: Window, cache: KVCache, config: ModelConfig) -> Tensor:
    """Return the attention output [rows * width, heads * head_size] for qkv [rows * width, all heads * head_size].

    Keys and values of the window's tokens are first written to layer `number` of the cache.
    """
    rows, width = window.rows, window.width
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size
    qkv = qkv.view(rows * width, heads + 2 * kv_heads, size)
    turning, new_values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
    rotated = _turn(turning, layer.qk_norm, window, config)
    new_keys = rotated[:, heads:]
    if layer.kv_scale is not None:
        new_keys, new_values = (round_to_e4m3(new, layer.kv_scale) for new in (new_keys, new_values))
    cache.write(number, window.slots, new_keys, new_values)
    keys, values = cache.read(number, window.first_row, rows, window.key_len)
    # Query heads that share a key head become additional queries of it, so keys are never repeated in memory.
    queries, group = rotated[:, :heads], heads // kv_heads
    if width == 1:
        queries = queries.view(rows, kv_heads, group, size)
    else:
        queries = queries.view(rows, width, kv_heads, group, size).permute(0, 2, 3, 1, 4)
        queries = queries.reshape(rows, kv_heads, group * width, size)
    mixed = _mix(queries, keys, values, window.mask, config)
    if width > 1:
        mixed = mixed.view(rows, kv_heads, group, width, size).permute(0, 3, 1, 2, 4)
    return mixed.reshape(rows * width, heads * size)


def cache_context(kv: Tensor, key_norm: Tensor | None, window: Window, cache: KVCache, config: ModelConfig) -> None:
    """Write kv [rows * width, 2 * layers * kv_heads * head_size], all keys before all values, to the cache.

    `key_norm` [layers * kv_heads, head_size] multiplies the normalized keys; it is None without a key norm.
    """
    keys, values = kv.view(len(kv), 2, -1, config.head_size).unbind(1)
    by_layer = (part.chunk(config.num_layers, 1) for part in (_turn(keys, key_norm, window, config), values))
    for number, (new_keys, new_values) in enumerate(zip(*by_layer, strict=True)):
        cache.write(number, window.slots, new_keys, new_values)


def _turn(heads: Tensor, norm: Tensor | None, window: Window, config: ModelConfig) -> Tensor:
    if norm is not None and config.qk_norm_over_heads:
        parts = torch.split_with_sizes(heads, [config.num_heads, config.num_kv_heads], 1)
        heads = torch.cat([F.rms_norm(part, part.shape[1:], None, config.norm_epsilon) for part in parts], 1) * norm
    elif norm is not None:
        heads = F.rms_norm(heads, (config.head_size,), None, config.norm_epsilon) * norm
    return _rotate(heads, window.rotation)


def _mix(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, config: ModelConfig) -> Tensor:
    scale, cap = config.score_scale, config.attention_cap
    if not cap:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    scores = torch.tanh(torch.matmul(queries, keys.mT) * (scale / cap)) * cap
    if mask is not None:
        scores += mask
    return torch.matmul(scores.softmax(-1, torch.float32).to(queries.dtype), values)


def _rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    shape, rotated = heads.shape, 2 * rotation.shape[-1]
    if rotated < shape[-1]:
        return torch.cat((_rotate(heads[..., :rotated], rotation), heads[..., rotated:]), -1)
    pairs = torch.view_as_complex(heads.float().reshape(*shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).view(shape).to(heads.dtype)


# The auxiliary layer number of the hidden state after the final norm, which is the input of the LM head.
FINAL = -1


@dataclass(frozen=True)
class Sublayers:
    """Numbers of the layers whose attention or MLP is skipped."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()


NONE_SKIPPED = Sublayers()


class Decoder:
    """A model on a device with a KV cache of `rows` x `max_len`, for texts of `length` tokens (0: `max_len`)."""

    def __init__(
        self,
        checkpoint: TrtllmCheckpoint,
        rows: int,
        max_len: int,
        device: torch.device,
        dtype: torch.dtype,
        length: int = 0,
    ) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.device, self.dtype = device, dtype
        self.weights = DecoderWeights(self.checkpoint, device, dtype)
        self.embedding = self.weights.weight(EMBEDDING)
        self._embedding_scale = embedding_scale(self.config, dtype, device)
        self.layers = [self.weights.layer(number) for number in range(self.config.num_layers)]
        self.final_norm = self.weights.norm(FINAL_NORM.removesuffix(".weight"))
        self.lm_head = self.weights.lm_head(self.embedding)
        self.norm = Norm(self.config.hidden_size, self.config.norm_epsilon, device)
        self.windows = Windows(self.config, max_len, device, dtype, length)
        self.cache = KVCache(self.config, rows, max_len, device, dtype)
        # experts are chosen on the host, which a graph cannot do
        graphs = device.type == "cuda" and not self.config.num_experts
        self._pass = PassGraphs(self._run) if graphs else self._run

    def forward(self, tokens: Tensor, window: Window, at: Tensor | None = None) -> Tensor:
        """Run `tokens` [rows, width] through the model, writing their keys and values to the cache.

        Args:
            tokens: int64 ids.
            window: the positions of the tokens.
            at: flat indices into rows * width of the tokens whose logits are returned, or None for all.

        Returns:
            Logits [len(at) or rows * width, vocab] in the compute dtype.
        """
        return self.forward_with_features(tokens, window, (), at)[0]

    def forward_with_features(
        self,
        tokens: Tensor,
        window: Window,
        aux_layers: Sequence[int],
        at: Tensor | None = None,
        skipped: Sublayers = NONE_SKIPPED,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits of `forward` and the hidden states at `aux_layers` [rows * width, aux_layers * hidden].

        Auxiliary layer i is the input of layer i (num_layers: the output of the last layer), FINAL the output of the
        final norm; the hidden states are None without `aux_layers`. `skipped` sublayers are not computed.
        """
        return self._pass(tokens, window, aux_layers, at, skipped)

    def _run(
        self, tokens: Tensor, window: Window, aux_layers: Sequence[int], at: Tensor | None, skipped: Sublayers
    ) -> tuple[Tensor, Tensor | None]:
        count, padding = tokens.numel(), self._padding(tokens.numel())
        hidden = F.embedding(F.pad(tokens.flatten(), (0, padding)) if padding else tokens.flatten(), self.embedding)
        if self._embedding_scale is not None:
            hidden = hidden * self._embedding_scale
        kept = {}
        for number, layer in enumerate(self.layers):
            kept[number] = hidden
            if number not in skipped.attention:
                hidden = self._attention(hidden, number, layer, window)
            if number not in skipped.mlp:
                hidden = layer.mlp.add_to(hidden, self.norm(hidden, layer.post_norm))
        normed = self.norm(hidden, self.final_norm)
        kept |= {len(self.layers): hidden, FINAL: normed}
        features = torch.cat([kept[aux_layer][:count] for aux_layer in aux_layers], -1) if aux_layers else None
        return self.lm_head(normed)[:count] if at is None else self.lm_head(normed[at]), features

    def _padding(self, count: int) -> int:
        """Return the padding rows for a pass of `count` rows; 0 with experts, which would load weights for padding."""
        return 0 if self.config.num_experts else self.layers[0].qkv.matrix.taken(count) - count

    def _attention(self, hidden: Tensor, number: int, layer: DecoderLayer, window: Window) -> Tensor:
        qkv = layer.qkv(self.norm(hidden, layer.input_norm))
        seen = window.near if layer.has_window and window.near else window
        mixed = attend(qkv[: window.rows * window.width], layer, number, seen, self.cache, self.config)
        if padding := len(hidden) - len(mixed):
            mixed = F.pad(mixed, (0, 0, 0, padding))
        return layer.dense.add_to(hidden, mixed)
