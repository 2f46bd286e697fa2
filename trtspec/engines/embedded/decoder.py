# SPDX-License-Identifier: Apache-2.0
"""The transformer: a converted TensorRT-LLM checkpoint as torch tensors, and its forward pass over a KV cache.

Everything that depends on positions alone (cache slots, rotations, mask) is computed once a step for all layers, in a
`Window`. Rows of a batch may stand at different lengths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoint.model_config import ModelConfig, RopeScaling
from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.trtllm import EMBEDDING, FINAL_NORM, LM_HEAD, Checkpoint, layer_tensor, load_checkpoint
from trtspec.errors import CheckpointError

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


class KVCache:
    """Preallocated keys and values: per layer one tensor [rows * max_len, kv_heads, head_size] each.

    A row's length is kept by the caller, so rolling back rejected tokens costs nothing: their slots are written again.
    """

    def __init__(self, config: ModelConfig, rows: int, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (rows * max_len, config.num_kv_heads, config.head_size)
        self.max_len = max_len
        self._keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self._values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        by_row = (rows, max_len, *shape[1:])
        self._by_row = [
            (keys.view(by_row).transpose(1, 2), values.view(by_row).transpose(1, 2))
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [len(slots), kv_heads, head_size]."""
        self._keys[layer].index_copy_(0, slots, keys)
        self._values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, first_row: int, rows: int, key_len: int) -> tuple[Tensor, Tensor]:
        """Return views of keys and values, each [rows, kv_heads, key_len, head_size]."""
        keys, values = self._by_row[layer]
        where = (slice(first_row, first_row + rows), slice(None), slice(key_len))
        return keys[where], values[where]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of row `source` over row `target`."""
        here, there = source * self.max_len, target * self.max_len
        for cache in (*self._keys, *self._values):
            cache[there : there + length] = cache[here : here + length]


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


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, matrices as [in, out]; q and k are ordered so that a rotary pair is adjacent.

    With the output contiguous, a CPU multiplies the few rows of a verify step nearly as fast as one row.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    dense: Tensor
    dense_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Decoder:
    """A model on a device, with a KV cache of `rows` x `max_len`."""

    def __init__(self, root: Path, rows: int, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        checkpoint = load_checkpoint(root)
        self.config = checkpoint.config
        self.device, self.dtype = device, dtype
        loader = _Loader(checkpoint, device, dtype)
        self.embedding = loader.take(EMBEDDING)
        self.layers = [loader.layer(number) for number in range(self.config.num_layers)]
        self.final_norm = loader.norm(FINAL_NORM)
        self.lm_head = self.embedding.t() if self.config.tied_embeddings else loader.matrix(LM_HEAD)
        # x / rms(x) is x / hypot(|x|, this) times the root of the width, which is in the norms' weights
        self._norm_epsilon = torch.tensor((self.config.hidden_size * self.config.norm_epsilon) ** 0.5, device=device)
        self.rotations = _rotations(self.config, max_len).to(device)
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
        rotations = self.rotations[positions.t()].unbind(0)
        ragged = min(starts) != max(starts)
        windows = []
        for step, (slot, rotation) in enumerate(zip(slots.t().contiguous().unbind(0), rotations, strict=True)):
            key_len = max(starts) + step + 1
            mask = self._mask(positions[:, step : step + 1], key_len) if ragged else None
            windows.append(Window(0, len(starts), 1, slot, rotation, mask, key_len))
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
            normed = self._norm(hidden, layer.input_norm)
            mixed = self._attend(_linear(normed, layer.qkv, layer.qkv_bias), number, window)
            hidden = torch.addmm(hidden, mixed, layer.dense)
            if layer.dense_bias is not None:
                hidden += layer.dense_bias
            normed = self._norm(hidden, layer.post_norm)
            gate, up = _linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.down)
            if layer.down_bias is not None:
                hidden += layer.down_bias
        if at is not None:
            hidden = hidden[at]
        return self._norm(hidden, self.final_norm) @ self.lm_head

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if hidden.dtype != torch.float32:
            return F.rms_norm(hidden, weight.shape, weight, self.config.norm_epsilon)
        # the same in a third of the operations, each of which costs more than its arithmetic at batch 1
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden / torch.hypot(length, self._norm_epsilon) * weight

    def _attend(self, qkv: Tensor, layer: int, window: Window) -> Tensor:
        config, rows, width = self.config, window.rows, window.width
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size
        qkv = qkv.view(rows * width, heads + 2 * kv_heads, size)
        rotated = _rotate(qkv[:, : heads + kv_heads], window.rotation)
        self.cache.write(layer, window.slots, rotated[:, heads:], qkv[:, heads + kv_heads :])
        keys, values = self.cache.read(layer, window.first_row, rows, window.key_len)
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


def _linear(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)


def _rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    shape = heads.shape
    pairs = torch.view_as_complex(heads.float().view(*shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).view(shape).to(heads.dtype)


def _rotations(config: ModelConfig, max_len: int) -> Tensor:
    """Return e^(i * position * frequency) as complex64 [max_len, 1, head_size / 2].

    In float32 throughout, as transformers and TensorRT-LLM compute it: at large positions the rounding shows.
    """
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
    frequencies = 1.0 / config.rotary_base**exponents
    if config.rope_scaling:
        frequencies = _scale(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    stretched = frequencies / scaling.factor
    if scaling.kind == "linear":
        return stretched
    # llama3: meta-llama/llama-models, models/llama3/model.py apply_scaling
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(stretched, frequencies, smooth.clamp(0.0, 1.0))


class _Loader:
    """Reads the tensors of a checkpoint in the compute dtype and in the order the forward pass wants them."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.device, self.dtype = device, dtype

    def take(self, name: str) -> Tensor:
        if name not in self.checkpoint.tensors:
            raise CheckpointError(f"lacks the tensor {name!r}", where=str(self.checkpoint.root))
        return _map(self.checkpoint.tensors[name]).to(self.device, self.dtype)

    def matrix(self, name: str) -> Tensor:
        return self.take(name).t().contiguous()

    def norm(self, name: str) -> Tensor:
        weight = self.take(name)
        return weight * self.config.hidden_size**0.5 if self.dtype == torch.float32 else weight

    def layer(self, number: int) -> Layer:
        attention, mlp = self.config.attn_bias, self.config.mlp_bias

        def name(suffix: str) -> str:
            return layer_tensor(number, suffix)

        def both(kind: str) -> Tensor:
            return torch.cat([self.take(name(f"mlp.fc.{kind}")), self.take(name(f"mlp.gate.{kind}"))])

        return Layer(
            input_norm=self.norm(name("input_layernorm.weight")),
            qkv=self._pair(self.take(name("attention.qkv.weight"))).t().contiguous(),
            qkv_bias=self._pair(self.take(name("attention.qkv.bias"))) if attention else None,
            dense=self.matrix(name("attention.dense.weight")),
            dense_bias=self.take(name("attention.dense.bias")) if attention else None,
            post_norm=self.norm(name("post_layernorm.weight")),
            gate_up=both("weight").t().contiguous(),
            gate_up_bias=both("bias") if mlp else None,
            down=self.matrix(name("mlp.proj.weight")),
            down_bias=self.take(name("mlp.proj.bias")) if mlp else None,
        )

    def _pair(self, qkv: Tensor) -> Tensor:
        """Interleave the halves of each q and k head: rotary pairs (i, i + size/2) become (2i, 2i + 1)."""
        rotated = (self.config.num_heads + self.config.num_kv_heads) * self.config.head_size
        heads = qkv[:rotated].view(-1, 2, self.config.head_size // 2, *qkv.shape[1:])
        return torch.cat([heads.transpose(1, 2).reshape(qkv[:rotated].shape), qkv[rotated:]])


def _map(tensor: TensorInfo) -> Tensor:
    raw = np.memmap(tensor.file, np.uint8, "c", tensor.offset, tensor.nbytes)
    return torch.from_numpy(raw).view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)
