# SPDX-License-Identifier: Apache-2.0
"""Random batches of any vocabulary and dtype that cover the differences between a kernel and the reference.

Rows have ties and masked ids, uniforms include their limits, lengths vary, requests use all kinds of sampling, and
drafts have a smaller vocabulary with `reduced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trtspec.kernels.bit_exact import (
    ChainBatch,
    ChainResult,
    DraftKind,
    Mode,
    TreeBatch,
    TreeResult,
)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DRAFTS = ("deterministic", "logits", "probabilities", "reduced")

SAMPLING = [
    # temperature, top_k, top_p
    (1.0, 0, 1.0),
    (0.0, 0, 1.0),
    (0.7, 40, 1.0),
    (1.3, 0, 0.8),
    (0.9, 7, 0.5),
    (2.0, 3, 1.0),
    (1.0, 1, 0.3),
]


@dataclass(frozen=True)
class Shape:
    """The size of a batch, the dtype of its logits, and the kind of draft."""

    vocab: int
    dtype: str = "float32"
    draft: str = "deterministic"
    requests: int = 7
    draft_len: int = 3
    seed: int = 0


def random_chains(shape: Shape) -> ChainBatch:
    """Return chains with different numbers of accepted tokens."""
    rng = np.random.default_rng(shape.seed)
    target = _logits(rng, shape, shape.draft_len + 1)
    likely = np.argsort(target[:, :-1], axis=-1)[..., ::-1]
    tokens = _likely_tokens(rng, likely)
    return ChainBatch(
        target=target,
        tokens=tokens,
        lengths=rng.integers(0, shape.draft_len + 1, shape.requests).astype(np.int32) | (shape.seed % 2),
        uniforms=_uniforms(rng, target.shape[:2]),
        **_sampling(shape.requests),
        **_draft(rng, shape, target[:, :-1]),
    )


def random_trees(shape: Shape, mode: Mode, nodes: int = 9) -> TreeBatch:
    """Return trees of random shapes; children have probable tokens after their parents, sometimes equal ones."""
    rng = np.random.default_rng(shape.seed)
    target = _logits(rng, shape, nodes)
    parents = np.array([[-1, *(int(rng.integers(0, node) ** 0.7) for node in range(1, nodes))]] * shape.requests)
    parents[rng.random(parents.shape) < 0.05] = -1
    likely = np.argsort(np.take_along_axis(target, parents.clip(0)[..., None], 1), axis=-1)[..., ::-1]
    sampled = _draft(rng, shape, target) if mode == Mode.SAMPLED else {}
    return TreeBatch(
        target=target,
        tokens=_likely_tokens(rng, likely),
        parents=parents.astype(np.int32),
        limits=rng.integers(0, 5, shape.requests).astype(np.int32) + shape.seed % 2,
        uniforms=_uniforms(rng, target.shape[:2]),
        mode=mode,
        **_sampling(shape.requests),
        **sampled,
    )


def assert_equal(got: ChainResult | TreeResult, expected: ChainResult | TreeResult) -> None:
    """Compare all ids."""
    for name, theirs in expected._asdict().items():
        assert getattr(got, name).tolist() == theirs.tolist(), name


def _logits(rng: np.random.Generator, shape: Shape, rows: int) -> np.ndarray[Any, Any]:
    """Return float32 logits that are exact in the shape's dtype."""
    logits = (rng.normal(size=(shape.requests, rows, shape.vocab)) * 2.5).astype(np.float32)
    logits[rng.random(logits.shape) < 0.02] = -np.inf
    logits[..., rng.integers(shape.vocab)] = 1.0
    return _rounded(logits, shape.dtype)


def _rounded(logits: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    rounded: np.ndarray[Any, Any] = torch.from_numpy(logits).to(DTYPES[dtype]).float().numpy()
    return rounded


def _likely_tokens(rng: np.random.Generator, likely: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a token for each row of ids, [..., vocab] in order of their probability."""
    rank = np.minimum(rng.geometric(0.5, likely.shape[:-1]) - 1, likely.shape[-1] - 1)
    return np.take_along_axis(likely, rank[..., None], -1)[..., 0].astype(np.int32)


def _uniforms(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    uniforms = rng.integers(0, 2**32, shape, dtype=np.uint64)
    uniforms[rng.random(shape) < 0.1] = 0
    uniforms[rng.random(shape) < 0.1] = 2**32 - 1
    return uniforms.astype(np.uint32)


def _sampling(requests: int) -> dict[str, np.ndarray[Any, Any]]:
    temperature, top_k, top_p = zip(*(SAMPLING[i % len(SAMPLING)] for i in range(requests)), strict=True)
    return {
        "temperature": np.array(temperature, dtype=np.float32),
        "top_k": np.array(top_k, dtype=np.int32),
        "top_p": np.array(top_p, dtype=np.float32),
    }


def _draft(rng: np.random.Generator, shape: Shape, target: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return a draft close to the target, for all ids or for about a third of them."""
    if shape.draft == "deterministic":
        return {}
    logits = np.where(np.isinf(target), 0, target) + rng.normal(size=target.shape).astype(np.float32)
    if shape.draft == "reduced":
        ids = rng.permutation(shape.vocab)[: max(shape.vocab // 3, 1)]
        columns = _column_map(ids, shape.vocab)
        return {"draft": _rounded(np.ascontiguousarray(logits[..., ids]), shape.dtype), "draft_column": columns}
    if shape.draft == "logits":
        return {"draft": _rounded(logits, shape.dtype)}
    probs = torch.softmax(torch.from_numpy(logits), -1).numpy()
    return {"draft": probs, "draft_kind": DraftKind.PROBABILITIES}


def _column_map(ids: np.ndarray[Any, Any], vocab: int) -> np.ndarray[Any, Any]:
    """Return each target id's draft column [vocab], -1 for none, given all columns' ids [draft_vocab]."""
    known = (ids >= 0) & (ids < vocab)
    columns = np.full(vocab, -1, dtype=np.int32)
    columns[ids[known]] = np.flatnonzero(known)
    return columns
