# SPDX-License-Identifier: Apache-2.0
"""Compaction of a KV cache after tree verification: the entries of accepted nodes move to the end of the text."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trtspec.kernels.bit_exact.batch import Ints

Scalar = TypeVar("Scalar", bound=np.generic)


def kv_moves(path: Ints, starts: Ints) -> Ints:
    """Return moves [n, 3] of (row, from slot, to slot) for accepted nodes `path` [batch, nodes], -1 beyond the last.

    A request's root is in the slot `starts` [batch], followed by its nodes in order. In the returned order no slot is
    written before it is read.
    """
    moves = [
        (row, start + node, start + depth)
        for row, (nodes, start) in enumerate(zip(path.tolist(), starts.tolist(), strict=True))
        for depth, node in enumerate(nodes, 1)
        if node > depth
    ]
    return np.array(moves, dtype=np.int32).reshape(-1, 3)


def compact_kv(cache: npt.NDArray[Scalar], moves: Ints) -> npt.NDArray[Scalar]:
    """Return a cache [rows, slots, ...] after all moves, each of which reads the original slot."""
    moved = cache.copy()
    row, source, destination = moves.T
    moved[row, destination] = cache[row, source]
    return moved
