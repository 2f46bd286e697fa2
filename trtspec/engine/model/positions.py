# SPDX-License-Identifier: Apache-2.0
"""Positions of the tokens of a step: rotations, cache slots and attention masks, computed once for all layers.

The frequency of each pair of a head, plain or scaled, is computed in float32 and in the order of transformers'
operations (src/transformers/modeling_rope_utils.py); the tests compare bits, because the rounding of a frequency
matters at large positions. TensorRT-LLM computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig, RopeScaling

if TYPE_CHECKING:
    from trtspec.kernels.tree import Tree


def rotations(config: ModelConfig, max_len: int, length: int = 0) -> Tensor:
    """Return attention_factor * e^(i * position * frequency) as complex64 [max_len, 1, rotary_size / 2].

    `length` is the length of the longest text in tokens.
    """
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies(config, length))
    return torch.polar(torch.full_like(angles, attention_factor(config)), angles).unsqueeze(1)


def sliding_window_config(config: ModelConfig) -> ModelConfig:
    """Return the config with the rotary settings of layers with a sliding window."""
    if not config.local_rotary_base:
        return config
    return replace(config, rotary_base=config.local_rotary_base, rope_scaling=None)


def attention_factor(config: ModelConfig) -> float:
    return config.rope_scaling.attention_factor if config.rope_scaling else 1.0


def frequencies(config: ModelConfig, length: int = 0) -> Tensor:
    """Return the radians per position of each rotary pair, float32 [rotary_size / 2].

    `length` is the maximum length of a text in tokens, which LongRoPE needs to choose its factors.
    """
    exponents = torch.arange(0, config.rotary_size, 2, dtype=torch.float32) / config.rotary_size
    inverse = config.rotary_base**exponents
    scaling = config.rope_scaling
    # "dynamic" scaling applies only beyond the model's original positions, which the engine does not support
    if scaling is None or scaling.kind == "dynamic":
        return 1.0 / inverse
    if scaling.kind == "linear":
        return 1.0 / inverse / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(1.0 / inverse, scaling)
    if scaling.kind == "longrope":
        is_long = length > scaling.original_max_position
        return 1.0 / (torch.tensor(scaling.long_factors if is_long else scaling.short_factors) * inverse)
    return _yarn(inverse, scaling, config)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Scale low frequencies as in meta-llama/llama-models, models/llama3/model.py."""
    wavelengths = 2 * math.pi / plain
    longest = scaling.original_max_position / scaling.low_freq_factor
    shortest = scaling.original_max_position / scaling.high_freq_factor
    turns = scaling.original_max_position / wavelengths
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - kept) * plain / scaling.factor + kept * plain
    stretched = torch.where(wavelengths > longest, plain / scaling.factor, plain)
    return torch.where((wavelengths < shortest) | (wavelengths > longest), stretched, between)


def _yarn(inverse: Tensor, scaling: RopeScaling, config: ModelConfig) -> Tensor:
    """Blend plain and scaled frequencies by a ramp over the pairs (YaRN, arXiv 2309.00071, eq. 23)."""

    def pair_with_turns(turns: float) -> float:
        original = math.log(scaling.original_max_position / (turns * 2 * math.pi))
        return config.rotary_size * original / (2 * math.log(config.rotary_base))

    first, last = pair_with_turns(scaling.beta_fast), pair_with_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, config.rotary_size - 1)
    ramp = (torch.arange(len(inverse), dtype=torch.float32) - first) / (last - first or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (scaling.factor * inverse) * (1 - kept) + 1.0 / inverse * kept


@dataclass(frozen=True)
class Window:
    """Positions of `width` tokens in each of `rows` cache rows; shared by all layers of a step.

    `slots` [rows * width] are their cache slots and `rotation` is complex [rows * width, 1, rotary_size / 2]. `mask`
    [rows, 1, queries, key_len] is added to the scores, or None if every query attends to all `key_len` keys. `near` is
    the window for layers with a sliding window, or None for a model without such layers.
    """

    first_row: int
    rows: int
    width: int
    slots: Tensor
    rotation: Tensor
    mask: Tensor | None
    key_len: int
    near: Window | None = None

    def part(self, first: int, last: int) -> Window:
        """Return the window of the tokens `first` to `last` (exclusive) of each row."""
        rows, width, taken = self.rows, self.width, slice(first, last)
        slots = self.slots.view(rows, width)[:, taken].flatten()
        rotation = self.rotation.view(rows, width, *self.rotation.shape[1:])[:, taken].flatten(0, 1)
        mask = None
        if self.mask is not None:
            mask = self.mask.view(len(self.mask), -1, width, self.key_len)[:, :, taken].flatten(1, 2).unsqueeze(1)
            mask = mask.contiguous()  # torch's attention on CUDA checks the alignment of strides, not of the address
        near = self.near.part(first, last) if self.near else None
        return Window(self.first_row, rows, last - first, slots, rotation, mask, self.key_len, near)


NextLevel = Callable[[Tensor], Window]  # see `Windows.growing`


def padded_key_len(count: int) -> int:
    """Return `count` rounded up to a multiple of 64, and of an eighth of its next power of two."""
    step = max(64, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


class Windows:
    """Factory of the windows of a model with `max_len` cache positions per row, for texts of at most `length` tokens.

    With `few_shapes`, the windows of the target's and a draft model's tokens always have a mask, and few key lengths,
    see `padded_key_len`. On CUDA this keeps torch's choice of an attention kernel, and so the order of its sums,
    independent of the width, and lets graphs of passes be reused. It is the default on CUDA.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_len: int,
        device: torch.device,
        dtype: torch.dtype,
        length: int = 0,
        *,
        few_shapes: bool | None = None,
    ) -> None:
        self._few_shapes = device.type == "cuda" if few_shapes is None else few_shapes
        self._group = config.num_heads // config.num_kv_heads
        self._max_len, self._device, self._dtype = max_len, device, dtype
        self._rotations = rotations(config, max_len, length or max_len).to(device)
        self._positions = torch.arange(max_len, device=device)
        self._reach = config.sliding_window if any(map(config.has_window, range(config.num_layers))) else 0
        self._near_rotations = None
        if self._reach and config.local_rotary_base:
            self._near_rotations = rotations(sliding_window_config(config), max_len).to(device)

    def unmasked(self, starts: list[int], width: int, first_row: int = 0) -> Window:
        """Return the window of `width` tokens from `starts[i]` on in cache row `first_row + i`, without a mask.

        Each token attends to all keys of the window.
        """
        return self._at(self._along(starts, width), starts, first_row, max(starts) + width)

    def chain(self, starts: list[int], width: int, first_row: int = 0) -> Window:
        """Return the causal window of `width` tokens from `starts[i]` on in cache row `first_row + i`."""
        positions = self._along(starts, width)
        window = self._at(positions, starts, first_row, self._keys(max(starts) + width))
        keys = self._positions[: window.key_len]
        if width > 1 or min(starts) != max(starts) or self._few_shapes:
            window = replace(window, mask=self._grouped(self._hiding(keys > positions.unsqueeze(-1))))
        return self._with_near(window, positions, keys)

    def block(self, starts: list[int], width: int) -> Window:
        """Return the window of `width` tokens from `starts[i]` on in cache row i.

        The tokens attend to the text and to each other, in both directions.
        """
        window = self.unmasked(starts, width)
        if min(starts) == max(starts):
            return window
        hidden = self._positions[: window.key_len] >= self._column(starts) + width
        return replace(window, mask=self._grouped(self._hiding(hidden).unsqueeze(1).expand(-1, width, -1)))

    def tree(self, starts: list[int], tree: Tree, offset: int = 0) -> Window:
        """Return the window of the nodes of a tree from number `offset` on; its root is at `starts[i]` in row i.

        The key of each node is stored at `starts[i]` plus its number, regardless of its depth. A node attends to the
        text, its ancestors and itself.
        """
        rows, nodes = len(starts), tree.parents.shape[1]
        depths, sees = (torch.from_numpy(part).to(self._device) for part in (tree.depths, tree.sees[:, offset:]))
        begin, key_len, width = self._column(starts), self._keys(max(starts) + nodes), nodes - offset
        places = begin + self._positions[:nodes]
        text = self._hiding(self._positions[:key_len] >= begin).unsqueeze(1).expand(-1, width, -1)
        among = self._hiding(~sees).expand(rows, -1, -1)
        mask = text.scatter(2, places.unsqueeze(1).expand(-1, width, -1), among)
        positions = begin + depths[:, offset:]
        rotation, slots = self._rotations[positions.flatten()], self._slots(places[:, offset:], 0)
        window = Window(0, rows, width, slots, rotation, self._grouped(mask), key_len)
        if not self._reach:
            return window
        keys = self._positions[:key_len].expand(rows, -1).scatter(1, places, begin + depths)
        return self._with_near(window, positions, keys.unsqueeze(1))

    def growing(self, starts: list[int], width: int, levels: int) -> NextLevel:
        """Return a function that creates the windows of growing trees, one level of `width` nodes per call.

        A tree has `levels` levels below the root. The argument of a call is the index [rows, width] of each node's
        parent in the previous level. The root is at `starts[i]` in row i, and keys are stored as in `tree`.
        """
        begin, nodes = self._column(starts), width * levels
        places = begin + self._positions[1 : 1 + nodes]
        rotation = self._rotations[begin + self._positions[1 : 1 + levels]]
        rotation = rotation.unsqueeze(2).expand(-1, -1, width, -1, -1)
        shape = len(starts), levels, width
        parts = places.view(shape), self._slots(places, 0).view(shape), rotation
        by_level = zip(*(part.unbind(1) for part in parts), strict=True)
        key_len = max(starts) + 1 + nodes
        mask = self._hiding(self._positions[:key_len] > begin).unsqueeze(1)

        def next_level(parents: Tensor) -> Window:
            nonlocal mask
            places, slots, rotation = next(by_level)
            seen = mask.gather(1, parents.unsqueeze(2).expand(-1, -1, key_len))
            mask = seen.scatter_(2, places.unsqueeze(2), 0.0)
            slots, rotation = slots.flatten(), rotation.flatten(0, 1)
            return Window(0, len(starts), width, slots, rotation, self._grouped(mask), key_len)

        return next_level

    def singles(self, starts: list[int], count: int) -> list[Window]:
        """Return `count` windows of one token per row, at `starts`, `starts` + 1, and so on, computed together."""
        if not count:
            return []
        positions = (self._column(starts) + self._positions[:count]).clamp_max(self._max_len - 1)
        slots = self._slots(positions, 0).view(positions.shape).t().contiguous().unbind(0)
        turns = self._rotations[positions.t()].unbind(0)
        most, masks = self._keys(max(starts) + count), None
        if min(starts) != max(starts) or self._few_shapes:
            masks = self._hiding(self._positions[:most] > positions.unsqueeze(-1))
        windows: list[Window] = []
        for step, (slot, turn) in enumerate(zip(slots, turns, strict=True)):
            key_len, at = most if self._few_shapes else max(starts) + step + 1, slice(step, step + 1)
            mask = None if masks is None else self._grouped(masks[:, at, :key_len])
            window = Window(0, len(starts), 1, slot, turn, mask, key_len)
            windows.append(self._with_near(window, positions[:, at], self._positions[:key_len]))
        return windows

    def _keys(self, count: int) -> int:
        """Return the key length of a window that needs `count` keys, padded with `few_shapes`."""
        return max(count, min(padded_key_len(count), self._max_len)) if self._few_shapes else count

    def _with_near(self, window: Window, positions: Tensor, keys: Tensor) -> Window:
        """Return the window with `near` set if the model has layers with a sliding window.

        `positions` [rows, width] are the positions of the tokens, `keys` the positions of the keys: [key_len] if all
        rows share them, otherwise [rows, 1, key_len].
        """
        if not self._reach:
            return window
        mask, rotation = window.mask, window.rotation
        if window.key_len > self._reach:
            far = self._grouped(self._hiding(keys <= positions.unsqueeze(-1) - self._reach))
            mask = far if mask is None else mask + far
        if self._near_rotations is not None:
            rotation = self._near_rotations[positions.flatten()]
        return replace(window, near=replace(window, mask=mask, rotation=rotation))

    def _along(self, starts: list[int], width: int) -> Tensor:
        """Return the positions [rows, width] of consecutive tokens, at most `max_len` - 1."""
        return (self._column(starts) + self._positions[:width]).clamp_max(self._max_len - 1)

    def _at(self, positions: Tensor, starts: list[int], first_row: int, key_len: int) -> Window:
        rows, width = positions.shape
        key_len = min(key_len, self._max_len)
        rotation = self._rotations[positions.flatten()]
        return Window(first_row, rows, width, self._slots(positions, first_row), rotation, None, key_len)

    def _column(self, starts: list[int]) -> Tensor:
        return torch.tensor(starts, device=self._device).unsqueeze(1)

    def _slots(self, positions: Tensor, first_row: int) -> Tensor:
        rows = torch.arange(first_row, first_row + len(positions), device=self._device).unsqueeze(1)
        return (positions + rows * self._max_len).flatten()

    def _hiding(self, hidden: Tensor) -> Tensor:
        """Return the additive mask: -inf for hidden keys, otherwise 0."""
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -torch.inf)

    def _grouped(self, mask: Tensor) -> Tensor:
        """Expand a mask [rows, width or 1, key_len] to the grouped queries of a window."""
        return mask.unsqueeze(1).expand(-1, self._group, -1, -1).flatten(1, 2).unsqueeze(1).contiguous()
