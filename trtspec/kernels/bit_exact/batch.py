# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of verification as arrays of a batch, and access to a single request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trtspec.kernels.abi import Array
from trtspec.kernels.bit_exact.fixed_point import (
    FIXED_ONE,
    Floats,
    Logits,
    RowSampling,
    WeightRow,
    Weights,
    fix,
    read_row,
    wrapped_sum,
)

Ints = npt.NDArray[np.int32]
Uniforms = npt.NDArray[np.uint32]
Values = npt.NDArray[np.floating[Any]]
Scalar = TypeVar("Scalar", bound=np.generic)


class DraftKind(IntEnum):
    """The content of a draft's rows: logits or probabilities."""

    LOGITS = 1
    PROBABILITIES = 2


class Mode(IntEnum):
    """The acceptance rule of a tree: for deterministic children, for sampled children, or typical (lossy)."""

    DETERMINISTIC = 0
    SAMPLED = 1
    TYPICAL = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class VerifyBatch:
    """The arguments that chains and trees have in common; `target` and `draft` are float32 or float16.

    Args:
        target: [batch, rows, vocab], the target's logits.
        tokens: [batch, drafted], draft tokens as ids of the target.
        draft: [batch, drafted, draft_vocab], the distributions of the draft tokens, or None for deterministic tokens.
        draft_kind: the content of `draft`.
        draft_column: [vocab], the column of `draft` for each id of the target, or -1. If None, columns are ids.
        temperature, top_k, top_p: [batch], or None for 1, 0 and 1.
        uniforms: [batch, rows], 32 random bits each, or None for greedy requests.
    """

    target: Values
    tokens: Ints
    draft: Values | None = None
    draft_kind: DraftKind = DraftKind.LOGITS
    draft_column: Ints | None = None
    temperature: Logits | None = None
    top_k: Ints | None = None
    top_p: Logits | None = None
    uniforms: Uniforms | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ChainBatch(VerifyBatch):
    """A batch of chains; `target` [batch, draft_len + 1, vocab] has a row for each draft token and one after the last.

    `lengths` [batch] is the number of valid tokens, or None for all. `uniforms` [batch, draft_len + 1] has one number
    for each draft token, then one for the next token.
    """

    lengths: Ints | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeBatch(VerifyBatch):
    """A batch of trees; `target`, `tokens`, `draft` and `uniforms` have one row per node.

    Args:
        draft: a node's row is the distribution of its children.
        parents: [batch, nodes], each less than its node; other values mark unused nodes. Node 0 is the root.
        limits: [batch], the maximum number of accepted tokens, or None for unlimited.
        mode: the acceptance rule.
        threshold, alpha: parameters of Mode.TYPICAL.
    """

    parents: Ints
    limits: Ints | None = None
    mode: Mode = Mode.DETERMINISTIC
    threshold: float = 0.09
    alpha: float = 0.3

    def __post_init__(self) -> None:
        if self.mode == Mode.SAMPLED and self.draft is None:
            raise ValueError("Mode.SAMPLED requires draft")


class ChainResult(NamedTuple):
    """Results of chains as int32 arrays [batch].

    `output` [batch, draft_len + 1] contains the accepted tokens, the next token, then -1. `status` is 0 or a
    combination of the error bits in `fixed_point`.
    """

    accepted: Array
    output: Array
    next: Array
    status: Array


class TreeResult(NamedTuple):
    """Results of trees as int32 arrays [batch].

    `path` [batch, nodes] contains the accepted nodes from the root down, then -1. `status` is 0 or a combination of the
    error bits in `fixed_point`.
    """

    path: Array
    path_len: Array
    next: Array
    status: Array


@dataclass(frozen=True, eq=False)
class DraftRow:
    """A row of the draft, indexed by ids of the target.

    `probs` [vocab] is 0 for ids without a column. `masses` [vocab] are the same values as integers in units of 1 /
    `unit`, and `total` is the sum of the row. If the row is not a distribution, `usable` is false and `masses` are
    undefined.
    """

    probs: Floats
    masses: Weights
    unit: float
    total: int
    usable: bool

    def is_prob(self, token: int) -> bool:
        """Return whether a token's own value is a probability, regardless of the other values."""
        return bool(0.0 <= self.probs[token] <= 1.0)


class BatchRequest:
    """One request of a batch: its rows of each array and its sampling parameters; greedy requests ignore the draft."""

    def __init__(self, batch: VerifyBatch, index: int) -> None:
        self._batch, self._target = batch, batch.target[index]
        self.vocab = self._target.shape[1]
        self.tokens: list[int] = batch.tokens[index].tolist()
        if batch.uniforms is None:
            self.sampling = RowSampling(temperature=0.0)
            # a greedy request samples from one-hot rows, so the uniform does not matter
            self.uniforms: list[int] = [0] * len(self._target)
        else:
            self.sampling = RowSampling(
                1.0 if batch.temperature is None else float(batch.temperature[index]),
                0 if batch.top_k is None else int(batch.top_k[index]),
                1.0 if batch.top_p is None else float(batch.top_p[index]),
            )
            self.uniforms = batch.uniforms[index].tolist()
        self._draft = None if batch.draft is None or self.sampling.greedy else batch.draft[index]

    def row(self, position: int) -> WeightRow:
        return read_row(self._target[position], self.sampling)

    def draft_row(self, position: int) -> DraftRow:
        """Return a row of the draft; without a draft, it is all zeros."""
        if self._draft is None:
            zeros = np.zeros(self.vocab)
            return DraftRow(zeros, fix(zeros), FIXED_ONE, 0, usable=True)
        if self._batch.draft_kind == DraftKind.LOGITS:
            row = read_row(self._draft[position], self.sampling)
            if row.status:
                return DraftRow(np.full(self.vocab, np.nan), row.weights, FIXED_ONE, 0, usable=False)
            return DraftRow(self._by_id(row.probs), self._by_id(row.weights), float(row.total), row.total, usable=True)
        probs = self._draft[position].astype(np.float64)
        usable = bool(np.all((probs >= 0.0) & (probs <= 1.0)))
        masses = fix(np.nan_to_num(probs))
        return DraftRow(self._by_id(probs), self._by_id(masses), FIXED_ONE, wrapped_sum(masses), usable)

    def _by_id(self, by_column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return values by target id [vocab] from values by column [draft_vocab]; ids without a column are 0."""
        columns = np.arange(self.vocab) if self._batch.draft_column is None else self._batch.draft_column
        there = (columns >= 0) & (columns < len(by_column))
        by_id = np.zeros(self.vocab, dtype=by_column.dtype)
        by_id[there] = by_column[columns[there]]
        return by_id


def unfilled(*shape: int) -> Ints:
    """Return an int32 array filled with -1, which marks unused entries of results."""
    return np.full(shape, -1, dtype=np.int32)
