# SPDX-License-Identifier: Apache-2.0
"""The transformer: a converted TensorRT-LLM checkpoint as torch tensors, and its forward pass over a KV cache.

Everything that depends on positions alone (cache slots, rotations, mask) is computed once a step for all layers, in a
`Window`. Rows of a batch may stand at different lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoint.trtllm import load_checkpoint
from trtspec.engines.embedded.cache import KVCache
from trtspec.engines.embedded.fp8 import through_e4m3
from trtspec.engines.embedded.layers import Layer
from trtspec.engines.embedded.rope import rotations
from trtspec.engines.embedded.weights import Weights


@dataclass(frozen=True)
class Window:
    """Where `width` tokens of each of `rows` cache rows stand; shared by all layers of a step.

    `slots` [rows * width] are their cache slots, `rotation` complex [rows * width, 1, head_size / 2], `mask`
    [rows, 1, queries, key_len] is added to the scores, None where every query sees all `key_len` keys.
    """

    first_row: int
    rows: int
    width: int
    slots: Tensor
    rotation: Tensor
    mask: Tensor | None
    key_len: int


class Decoder:
    """A model on a device, with a KV cache of `rows` x `max_len`."""

    def __init__(self, root: Path, rows: int, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        checkpoint = load_checkpoint(root)
        self.config = checkpoint.config
        self.device, self.dtype = device, dtype
        weights = Weights(checkpoint, device, dtype)
        self.embedding = weights.embedding()
        self.layers = [weights.layer(number) for number in range(self.config.num_layers)]
        self.final_norm = weights.final_norm()
        self.lm_head = weights.lm_head(self.embedding)
        # x / rms(x) is x / hypot(|x|, this) times the root of the width, which is in the norms' weights
        self._norm_epsilon = torch.tensor((self.config.hidden_size * self.config.norm_epsilon) ** 0.5, device=device)
        self.rotations = rotations(self.config, max_len).to(device)
        self.cache = KVCache(self.config, rows, max_len, device, dtype)
        self._positions = torch.arange(max_len, device=device)

    def window(self, starts: list[int], width: int, first_row: int = 0) -> Window:
        """Return the window of `width` tokens from position `starts[i]` on in cache row `first_row + i`."""
        positions, slots = self._place(starts, width, first_row)
        key_len = max(starts) + width
        mask = self._mask(positions, key_len) if width > 1 or min(starts) != max(starts) else None
        return Window(
            first_row, len(starts), width, slots.flatten(), self.rotations[positions.flatten()], mask, key_len
        )

    def single_windows(self, starts: list[int], count: int) -> list[Window]:
        """Return `count` windows of one token, at `starts`, one further on, and so on, computed all at once."""
        if not count:
            return []
        positions, slots = self._place(starts, count, 0)
        turns = self.rotations[positions.t()].unbind(0)
        ragged = min(starts) != max(starts)
        windows = []
        for step, (slot, turn) in enumerate(zip(slots.t().contiguous().unbind(0), turns, strict=True)):
            key_len = max(starts) + step + 1
            mask = self._mask(positions[:, step : step + 1], key_len) if ragged else None
            windows.append(Window(0, len(starts), 1, slot, turn, mask, key_len))
        return windows

    def _place(self, starts: list[int], width: int, first_row: int) -> tuple[Tensor, Tensor]:
        """Return positions and cache slots, both [rows, width]."""
        max_len = self.cache.max_len
        begin = torch.tensor(starts, device=self.device).unsqueeze(1)
        positions = (begin + self._positions[:width]).clamp_max(max_len - 1)
        rows = torch.arange(first_row, first_row + len(starts), device=self.device).unsqueeze(1)
        return positions, positions + rows * max_len

    def _mask(self, positions: Tensor, key_len: int) -> Tensor:
        """Return what is added to attention scores, [rows, 1, group * width, key_len]: 0 for what a query may see."""
        group = self.config.num_heads // self.config.num_kv_heads
        hidden = self._positions[:key_len] > positions.unsqueeze(-1)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, -torch.inf)
        return mask.repeat(1, group, 1).unsqueeze(1)

    def forward(self, tokens: Tensor, window: Window, at: Tensor | None = None) -> Tensor:
        """Run `tokens` [rows, width] through the model, writing their keys and values.

        Args:
            tokens: int64 ids.
            window: where they stand.
            at: flat indices into rows * width of the tokens whose logits are wanted; all where None.

        Returns:
            Logits [len(at) or rows * width, vocab] in the compute dtype.
        """
        hidden = F.embedding(tokens.flatten(), self.embedding)
        for number, layer in enumerate(self.layers):
            mixed = self._attend(layer.qkv(self._norm(hidden, layer.input_norm)), number, layer, window)
            hidden = layer.dense.add_to(hidden, mixed)
            hidden = layer.mlp.add_to(hidden, self._norm(hidden, layer.post_norm))
        if at is not None:
            hidden = hidden[at]
        return self.lm_head(self._norm(hidden, self.final_norm))

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if hidden.dtype != torch.float32:
            return F.rms_norm(hidden, weight.shape, weight, self.config.norm_epsilon)
        # the same in a third of the operations, each of which costs more than its arithmetic at batch 1
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden / torch.hypot(length, self._norm_epsilon) * weight

    def _attend(self, qkv: Tensor, number: int, layer: Layer, window: Window) -> Tensor:
        config, rows, width = self.config, window.rows, window.width
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size
        qkv = qkv.view(rows * width, heads + 2 * kv_heads, size)
        turning, new_values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            turning = F.rms_norm(turning, (size,), None, config.norm_epsilon) * layer.qk_norm
        rotated = _rotate(turning, window.rotation)
        new_keys = rotated[:, heads:]
        if layer.kv_scale is not None:
            new_keys, new_values = (through_e4m3(new, layer.kv_scale) for new in (new_keys, new_values))
        self.cache.write(number, window.slots, new_keys, new_values)
        keys, values = self.cache.read(number, window.first_row, rows, window.key_len)
        # The heads that share a key head become further queries of it, so keys are never repeated in memory.
        queries, group = rotated[:, :heads], heads // kv_heads
        if width == 1:
            queries = queries.view(rows, kv_heads, group, size)
        else:
            queries = queries.view(rows, width, kv_heads, group, size).permute(0, 2, 3, 1, 4)
            queries = queries.reshape(rows, kv_heads, group * width, size)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=window.mask)
        if width > 1:
            mixed = mixed.view(rows, kv_heads, group, width, size).permute(0, 3, 1, 2, 4)
        return mixed.reshape(rows * width, heads * size)


def _rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    shape = heads.shape
    pairs = torch.view_as_complex(heads.float().view(*shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).view(shape).to(heads.dtype)
