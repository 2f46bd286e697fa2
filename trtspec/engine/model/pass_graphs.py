# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of a decoder's passes: a pass of known shapes is launched as a whole instead of kernel by kernel.

A decode step of one request launches hundreds of kernels that each run for microseconds, so launching them takes longer
than running them. A graph is captured when shapes occur repeatedly; at most GRAPHS are kept, the most recently used.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trtspec.engine.model.positions import Window

GRAPHS = 64
CAPTURE_AT = 3  # passes of the same shapes; the ones before have initialized the libraries
MOST_TOKENS = 512  # longer passes take longer to run than to launch
COUNTED = 4096  # shapes whose passes are counted

log = logging.getLogger(__name__)

Outputs = tuple[Tensor, Tensor | None]
Pass = Callable[..., Outputs]  # (tokens, window, aux_layers, at, skipped), see Decoder.forward_with_features


@dataclass(frozen=True)
class _Inputs:
    """The tensors that a pass reads, apart from weights and cache."""

    tokens: Tensor
    window: Window
    at: Tensor | None

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Return the shapes and numbers that are fixed when a graph is captured."""
        seen, near = self.window, self.window.near
        kinds = [None if tensor is None else tuple(tensor.shape) for tensor in self.tensors]
        return (seen.first_row, seen.rows, seen.width, seen.key_len, near is not None, *kinds)

    @property
    def tensors(self) -> list[Tensor | None]:
        seen, near = self.window, self.window.near
        others = [near.mask, near.rotation] if near else []
        return [self.tokens, self.at, seen.slots, seen.rotation, seen.mask, *others]

    def copied(self) -> _Inputs:
        """Return a copy that shares no memory with this object."""
        window = _copied(self.window)
        if self.window.near:
            window = replace(window, near=replace(_copied(self.window.near), slots=window.slots))
        return _Inputs(self.tokens.clone(), window, None if self.at is None else self.at.clone())

    def copy_from(self, others: _Inputs) -> None:
        """Overwrite the tensors with the values of other inputs of the same shapes."""
        for mine, other in zip(self.tensors, others.tensors, strict=True):
            if mine is not None and other is not None:
                mine.copy_(other)


def _copied(window: Window) -> Window:
    dense = torch.contiguous_format  # also aligned, as attention kernels require
    mask = None if window.mask is None else window.mask.clone(memory_format=dense)
    return replace(window, slots=window.slots.clone(), rotation=window.rotation.clone(memory_format=dense), mask=mask)


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: _Inputs
    outputs: Outputs

    def replay(self, inputs: _Inputs) -> Outputs:
        self.inputs.copy_from(inputs)
        self.graph.replay()
        logits, features = self.outputs
        return logits.clone(), None if features is None else features.clone()


class PassGraphs:
    """Runs passes of a decoder on a CUDA device, as graphs if their shapes repeat."""

    def __init__(self, run: Pass) -> None:
        self._run, self._is_enabled = run, True
        self._graphs: OrderedDict[tuple[Any, ...], _Graph] = OrderedDict()
        self._passes: Counter[tuple[Any, ...]] = Counter()
        self._pool: Any = None  # memory that all graphs share: their results are copied before the next replay

    def __call__(
        self, tokens: Tensor, window: Window, aux_layers: Sequence[int], at: Tensor | None, skipped: Any
    ) -> Outputs:
        """Run a pass and return its outputs, which no later pass overwrites."""
        if not self._is_enabled or tokens.numel() > MOST_TOKENS or window.mask is None:
            return self._run(tokens, window, aux_layers, at, skipped)
        inputs, fixed = _Inputs(tokens, window, at), (tuple(aux_layers), skipped)
        key = (inputs.shapes, fixed)
        if found := self._graphs.get(key):
            self._graphs.move_to_end(key)
            return found.replay(inputs)
        if len(self._passes) >= COUNTED:
            self._passes = Counter({known: self._passes[known] for known in self._graphs})
        self._passes[key] += 1
        if self._passes[key] < CAPTURE_AT:
            return self._run(tokens, window, aux_layers, at, skipped)
        try:
            graph = self._capture(inputs.copied(), *fixed)
        except RuntimeError as error:
            log.warning("running without CUDA graphs, because capturing one failed: %s", error)
            self._is_enabled = False
            self._graphs.clear()
            return self._run(tokens, window, aux_layers, at, skipped)
        self._graphs[key] = graph
        if len(self._graphs) > GRAPHS:
            del self._passes[self._graphs.popitem(last=False)[0]]
        return graph.replay(inputs)

    def _capture(self, inputs: _Inputs, aux_layers: tuple[int, ...], skipped: Any) -> _Graph:
        """Capture a pass as a graph without running it."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # other threads may use the device meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = self._run(inputs.tokens, inputs.window, aux_layers, inputs.at, skipped)
        return _Graph(graph, inputs, outputs)
