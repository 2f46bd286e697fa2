# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of verification as arrays of a batch, and a view of one request."""

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
    """The content of a draft's rows."""

    LOGITS = 1
    PROBABILITIES = 2


class Mode(IntEnum):
    """How a node's children are accepted: drafted without or with sampling, or by the lossy typical rule."""

    DETERMINISTIC = 0
    SAMPLED = 1
    TYPICAL = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class VerifyBatch:
    """The common arguments of chains and trees; `target` and `draft` are float32 or float16.

    Args:
        target: [batch, rows, vocab], logits.
        tokens: [batch, drafted], ids of the target.
        draft: [batch, drafted, draft_vocab], the distributions of the tokens, or None for deterministic tokens.
        draft_kind: the content of `draft`.
        draft_column: [vocab], the column of `draft` for each id, -1 for none, or None if columns are ids.
        temperature, top_k, top_p: [batch], or None for 1, all and all.
        uniforms: [batch, rows], 32 bits each, or None for greedy requests.
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
    """Chains: `target` has a row for each of the [batch, draft_len] tokens and one for the position after the last.

    `lengths` [batch] is the number of valid tokens, or None for all. `uniforms` [batch, draft_len + 1] has one number
    for each token, then one for the next token.
    """

    lengths: Ints | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeBatch(VerifyBatch):
    """Trees: `target`, `tokens`, `draft` and `uniforms` have one row per node; a node's `draft` row is for its
    children.

    Args:
        parents: [batch, nodes], each less than its node; other values mark unused nodes. Node 0 is the root.
        limits: [batch], the maximum number of accepted tokens, or None for unlimited.
        mode: how the children were drafted.
        threshold, alpha: of Mode.TYPICAL.
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
    """Int32 arrays [batch]; `output` [batch, draft_len + 1] has the accepted tokens, the next token, then -1."""

    accepted: Array
    output: Array
    next: Array
    status: Array


class TreeResult(NamedTuple):
    """Int32 arrays [batch]; `path` [batch, nodes] has the accepted nodes from the root down, then -1."""

    path: Array
    path_len: Array
    next: Array
    status: Array


@dataclass(frozen=True, eq=False)
class DraftRow:
    """A row of the draft, indexed by the target's ids.

    `probs` [vocab] is 0 for ids without a column; `masses` [vocab] are the same in integers, where `unit` is 1 and
    `total` the sum of the row. `usable` is whether the row is a distribution; if not, `masses` are undefined.
    """

    probs: Floats
    masses: Weights
    unit: float
    total: int
    usable: bool

    def is_prob(self, token: int) -> bool:
        """Return whether a token's own value is a probability, regardless of the others."""
        return bool(0.0 <= self.probs[token] <= 1.0)


class BatchRequest:
    """One request of a batch: its rows of each array, and its sampling parameters. A greedy request lacks a draft."""

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
        """Read a row of the draft; without a draft, a row of zeros."""
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
        """Return the values of columns [draft_vocab] by id [vocab]; 0 for ids without a column."""
        columns = np.arange(self.vocab) if self._batch.draft_column is None else self._batch.draft_column
        there = (columns >= 0) & (columns < len(by_column))
        by_id = np.zeros(self.vocab, dtype=by_column.dtype)
        by_id[there] = by_column[columns[there]]
        return by_id


def unfilled(*shape: int) -> Ints:
    """Return an array of -1, which marks unused entries of results."""
    return np.full(shape, -1, dtype=np.int32)
