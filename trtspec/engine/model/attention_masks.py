# SPDX-License-Identifier: Apache-2.0
"""Where the tokens of a step stand: cache slots, rotations and the mask, computed once for all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.model.rope import rotations, under_windows

if TYPE_CHECKING:
    from trtspec.kernels.tree import Tree


@dataclass(frozen=True)
class Window:
    """Where `width` tokens of each of `rows` cache rows stand; shared by all layers of a step.

    `slots` [rows * width] are their cache slots, `rotation` complex [rows * width, 1, rotary_size / 2], `mask`
    [rows, 1, queries, key_len] is added to the scores, None where every query sees all `key_len` keys. `near` is what
    layers with a sliding window see instead, None where the model has no such layers.
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
        """Return the window of the tokens from number `first` up to `last`, without that, of each row."""
        rows, width, taken = self.rows, self.width, slice(first, last)
        slots = self.slots.view(rows, width)[:, taken].flatten()
        rotation = self.rotation.view(rows, width, *self.rotation.shape[1:])[:, taken].flatten(0, 1)
        mask = None
        if self.mask is not None:
            mask = self.mask.view(len(self.mask), -1, width, self.key_len)[:, :, taken].flatten(1, 2).unsqueeze(1)
        near = self.near.part(first, last) if self.near else None
        return Window(self.first_row, rows, last - first, slots, rotation, mask, self.key_len, near)


class Windows:
    """Makes the windows of a model whose cache has `max_len` positions a row, for texts of at most `length` tokens."""

    def __init__(
        self, config: ModelConfig, max_len: int, device: torch.device, dtype: torch.dtype, length: int = 0
    ) -> None:
        self._group = config.num_heads // config.num_kv_heads
        self._max_len, self._device, self._dtype = max_len, device, dtype
        self._rotations = rotations(config, max_len, length or max_len).to(device)
        self._positions = torch.arange(max_len, device=device)
        self._reach = config.sliding_window if any(map(config.has_window, range(config.num_layers))) else 0
        self._near_rotations = None
        if self._reach and config.local_rotary_base:
            self._near_rotations = rotations(under_windows(config), max_len).to(device)

    def unmasked(self, starts: list[int], width: int, first_row: int = 0) -> Window:
        """Return the window of `width` tokens from `starts[i]` on in cache row `first_row + i`, where each sees all."""
        return self._at(self._along(starts, width), starts, first_row)

    def chain(self, starts: list[int], width: int, first_row: int = 0) -> Window:
        """Return the window of `width` tokens, one after another, from `starts[i]` on in cache row `first_row + i`."""
        positions = self._along(starts, width)
        window = self._at(positions, starts, first_row)
        keys = self._positions[: window.key_len]
        if width > 1 or min(starts) != max(starts):
            window = replace(window, mask=self._grouped(self._hiding(keys > positions.unsqueeze(-1))))
        return self._with_near(window, positions, keys)

    def block(self, starts: list[int], width: int) -> Window:
        """Return the window of `width` tokens from `starts[i]` on in cache row i, which see the text and each other."""
        window = self.unmasked(starts, width)
        if min(starts) == max(starts):
            return window
        hidden = self._positions[: window.key_len] >= self._column(starts) + width
        return replace(window, mask=self._grouped(self._hiding(hidden).unsqueeze(1).expand(-1, width, -1)))

    def tree(self, starts: list[int], tree: Tree, offset: int = 0) -> Window:
        """Return the window of the nodes of a tree from number `offset` on, whose root stands at `starts[i]` in row i.

        The keys of all nodes lie behind each other whatever their depth, a node's own at `starts[i]` plus its number;
        a node sees the text, its ancestors and itself.
        """
        rows, nodes = len(starts), tree.parents.shape[1]
        depths, sees = (torch.from_numpy(part).to(self._device) for part in (tree.depths, tree.sees[:, offset:]))
        begin, key_len, width = self._column(starts), max(starts) + nodes, nodes - offset
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

    def growing(self, starts: list[int], width: int, levels: int) -> GrowingTree:
        """Return what makes the windows of trees that grow level by level, `levels` of `width` nodes below the root.

        The root stands at `starts[i]` in row i, and keys lie as those of `tree` do.
        """
        begin, nodes = self._column(starts), width * levels
        places = begin + self._positions[1 : 1 + nodes]
        rotation = self._rotations[begin + self._positions[1 : 1 + levels]]
        hidden = self._positions[: max(starts) + 1 + nodes] > begin
        rotation = rotation.unsqueeze(2).expand(-1, -1, width, -1, -1)
        shape = len(starts), levels, width
        parts = places.view(shape), self._slots(places, 0).view(shape), rotation
        by_level = list(zip(*(part.unbind(1) for part in parts), strict=True))
        return GrowingTree(by_level, self._hiding(hidden).unsqueeze(1), self._grouped)

    def singles(self, starts: list[int], count: int) -> list[Window]:
        """Return `count` windows of one token, at `starts`, one further on, and so on, computed all at once."""
        if not count:
            return []
        positions = (self._column(starts) + self._positions[:count]).clamp_max(self._max_len - 1)
        slots = self._slots(positions, 0).view(positions.shape).t().contiguous().unbind(0)
        turns = self._rotations[positions.t()].unbind(0)
        ragged = min(starts) != max(starts)
        windows: list[Window] = []
        for step, (slot, turn) in enumerate(zip(slots, turns, strict=True)):
            key_len = max(starts) + step + 1
            hidden = self._positions[:key_len] > positions[:, step : step + 1].unsqueeze(-1) if ragged else None
            mask = None if hidden is None else self._grouped(self._hiding(hidden))
            window = Window(0, len(starts), 1, slot, turn, mask, key_len)
            windows.append(self._with_near(window, positions[:, step : step + 1], self._positions[:key_len]))
        return windows

    def _with_near(self, window: Window, positions: Tensor, keys: Tensor) -> Window:
        """Return a window with what layers with a sliding window see of it, where the model has some.

        `positions` [rows, width] are those of the tokens, `keys` those of the keys, for all tokens [key_len] or for
        those of each row [rows, 1, key_len].
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
        """Return the positions [rows, width] of tokens that stand one after another."""
        return (self._column(starts) + self._positions[:width]).clamp_max(self._max_len - 1)

    def _at(self, positions: Tensor, starts: list[int], first_row: int) -> Window:
        rows, width = positions.shape
        key_len = min(max(starts) + width, self._max_len)
        rotation = self._rotations[positions.flatten()]
        return Window(first_row, rows, width, self._slots(positions, first_row), rotation, None, key_len)

    def _column(self, starts: list[int]) -> Tensor:
        return torch.tensor(starts, device=self._device).unsqueeze(1)

    def _slots(self, positions: Tensor, first_row: int) -> Tensor:
        rows = torch.arange(first_row, first_row + len(positions), device=self._device).unsqueeze(1)
        return (positions + rows * self._max_len).flatten()

    def _hiding(self, hidden: Tensor) -> Tensor:
        """Return what is added to attention scores for keys hidden or not."""
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -torch.inf)

    def _grouped(self, mask: Tensor) -> Tensor:
        """Return the mask [rows, 1, group * width, key_len] of a window, given that of its tokens without `group`."""
        return mask.unsqueeze(1).expand(-1, self._group, -1, -1).flatten(1, 2).unsqueeze(1)


class GrowingTree:
    """Makes the window of one level of a tree after the other; made by `Windows.growing`.

    `levels` are the positions of each level's keys, their slots [rows, width] and their rotations [rows, width, 1,
    rotary_size / 2]. `mask` [rows, 1, key_len] is what the root sees, `grouped` makes a window's mask of one.
    """

    def __init__(
        self, levels: list[tuple[Tensor, Tensor, Tensor]], mask: Tensor, grouped: Callable[[Tensor], Tensor]
    ) -> None:
        self._levels = iter(levels)
        self._mask, self._grouped = mask, grouped

    def below(self, parents: Tensor) -> Window:
        """Return the window of the next level, whose nodes hang on `parents` [rows, width], numbers in the last one."""
        places, slots, rotation = next(self._levels)
        rows, width = places.shape
        key_len = self._mask.shape[2]
        seen = self._mask.gather(1, parents.unsqueeze(2).expand(-1, -1, key_len))
        self._mask = seen.scatter_(2, places.unsqueeze(2), 0.0)
        return Window(0, rows, width, slots.flatten(), rotation.flatten(0, 1), self._grouped(self._mask), key_len)
