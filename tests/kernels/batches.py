# SPDX-License-Identifier: Apache-2.0
"""Batches of one request for checks by hand, and the results of implementations as plain tuples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trtspec.kernels.bit_exact import ChainBatch, ChainResult, DraftKind, Mode, TreeBatch, TreeResult
from trtspec.kernels.bit_exact.batch import VerifyBatch

AnyBatch = TypeVar("AnyBatch", bound=VerifyBatch)
ChainRule = Callable[[ChainBatch], ChainResult]
TreeRule = Callable[[TreeBatch], TreeResult]

LOG2_E = 1.44269504
"""At this temperature a logit is the log2 of its weight, so edges can be computed to the last bit."""

LAST, HALF, QUARTER = 2**32 - 1, 2**31, 2**30
NAN, INF = np.nan, np.inf
# probabilities 1/2, 1/4, 1/8, 1/8
HALVES = (0.0, -1.0, -2.0, -2.0)


def uniform_bits(uniforms: npt.NDArray[np.float64]) -> npt.NDArray[np.uint32]:
    """Convert numbers in [0, 1) to 32 bits each."""
    return (uniforms * 2.0**32).astype(np.uint32)


def one_chain(
    rows: object, tokens: object, uniforms: object, *, temperature: float = LOG2_E, **fields: object
) -> ChainBatch:
    """Return a batch of one request: logits [draft_len + 1, vocab], tokens [draft_len], 32-bit uniforms."""
    return ChainBatch(
        target=np.array([rows], dtype=np.float32),
        tokens=np.array(tokens, dtype=np.int32).reshape(1, -1),
        uniforms=np.array([uniforms], dtype=np.uint32),
        temperature=np.array([temperature], dtype=np.float32),
        **of_one(fields),
    )


def one_tree(
    rows: object,
    tokens: object,
    parents: object,
    uniforms: object,
    *,
    temperature: float = LOG2_E,
    **fields: object,
) -> TreeBatch:
    """Return a batch of one request: logits [nodes, vocab], tokens and parents [nodes], 32-bit uniforms [nodes].

    For sampled tokens without a draft, the draft's rows are zeros.
    """
    if fields.get("mode") == Mode.SAMPLED and "draft" not in fields:
        fields |= {"draft": np.zeros_like(rows), "draft_kind": DraftKind.PROBABILITIES}
    return TreeBatch(
        target=np.array([rows], dtype=np.float32),
        tokens=np.array([tokens], dtype=np.int32),
        parents=np.array([parents], dtype=np.int32),
        uniforms=np.array([uniforms], dtype=np.uint32),
        temperature=np.array([temperature], dtype=np.float32),
        **of_one(fields),
    )


def of_one(fields: dict[str, object]) -> dict[str, object]:
    """Return the fields of a batch with one request."""
    integers = {"top_k", "lengths", "limits"}
    return {
        name: value
        if isinstance(value, (DraftKind, Mode))
        else np.array([value], dtype=np.int32 if name in integers else np.float32)
        for name, value in fields.items()
    }


def pick(batch: AnyBatch, requests: object) -> AnyBatch:
    """Return some requests of a batch, in the given order."""
    arrays = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name != "draft_column"}
    return replace(batch, **{name: value[requests] for name, value in arrays.items() if isinstance(value, np.ndarray)})


def outcomes(verify: ChainRule | TreeRule, batch: VerifyBatch) -> list[tuple[list[int], int, int]]:
    """Return for each request its accepted tokens (a chain) or nodes (a tree), the next token, and the status.

    Redundant outputs must agree, and unused entries must be -1.
    """
    results = verify(batch)
    if isinstance(batch, ChainBatch):
        first, lengths = results.output, results.accepted
        ends = results.output[np.arange(len(lengths)), lengths]
        assert ends.tolist() == results.next.tolist()
        unused = np.arange(first.shape[1]) > lengths[:, None]
    else:
        first, lengths = results.path, results.path_len
        unused = np.arange(first.shape[1]) >= lengths[:, None]
    assert (first[unused] == -1).all()
    rows = zip(first.tolist(), lengths.tolist(), results.next.tolist(), results.status.tolist(), strict=True)
    return [(row[:length], token, status) for row, length, token, status in rows]


def sampled_at(verify: ChainRule, row: object, uniforms: list[int], **how: object) -> list[int]:
    """Return the tokens drawn from one row without a draft at some uniforms."""
    return [outcomes(verify, one_chain([row], [], [uniform], **how))[0][1] for uniform in uniforms]
