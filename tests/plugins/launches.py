# SPDX-License-Identifier: Apache-2.0
"""Launches of TensorRT's plugins, compared with the numpy reference, on the host or on a GPU."""

from __future__ import annotations

import numpy as np

from tests.plugins.tensorrt_driver import Driver, created
from trtspec.kernels.bit_exact import ChainBatch, DraftKind, Mode, TreeBatch, verify_chain, verify_tree

CHAIN = "TrtspecVerifyChain"
TREE = "TrtspecVerifyTree"


def empty(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.full(shape, -7, np.int32) for shape in shapes]


def sampling(rng: np.random.Generator, batch: int, uniforms: int) -> list[np.ndarray]:
    """Temperatures, top_p, top_k and uniforms; the first request is greedy."""
    temperature = np.linspace(0.0, 1.5, batch, dtype=np.float32)
    top_p = np.full(batch, 0.9, np.float32)
    top_k = np.arange(batch, dtype=np.int32)
    return [temperature, top_p, top_k, rng.integers(0, 1 << 32, (batch, uniforms), np.uint32)]


def as_int32(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [array.view(np.int32) if array.dtype == np.uint32 else array for array in arrays]


def bfloat16_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values truncated to bfloat16, as float32 and as bits."""
    cut = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return cut.view(np.float32), (cut >> np.uint32(16)).astype(np.uint16)


def check_chain(driver: Driver, draft: DraftKind | None, dtype: str) -> None:
    """Compare a chain with padded columns and a draft with its own vocabulary."""
    rng = np.random.default_rng(3)
    batch, draft_len, vocab, draft_vocab = 6, 4, 23, 9
    target = rng.normal(0, 2, (batch, draft_len + 1, vocab + 5)).astype(dtype)
    target[:, :, vocab:] = 50
    rows = rng.normal(0, 2, (batch, draft_len, draft_vocab + 2)).astype(dtype)
    if draft is DraftKind.PROBABILITIES:
        rows = np.full((batch, draft_len, draft_vocab + 2), 1 / draft_vocab, np.float32)
    column = np.full(vocab, -1, np.int32)
    drafted = rng.permutation(vocab)[:draft_vocab]
    column[drafted] = np.arange(draft_vocab)
    tokens = rng.choice(drafted, (batch, draft_len)).astype(np.int32)
    lengths = np.arange(batch, dtype=np.int32) % (draft_len + 1)
    how = sampling(rng, batch, draft_len + 1)

    fields = f"vocab={vocab}" + (f" draft_kind={int(draft)} draft_vocab={draft_vocab}" if draft else "")
    outputs = empty((batch,), (batch, draft_len + 1), (batch,), (batch,))
    inputs = [target, tokens, lengths, *([rows, column] if draft else []), *as_int32(how)]
    assert created(driver, CHAIN, fields).launch(inputs, outputs) == 0, driver.message

    expected = verify_chain(
        ChainBatch(
            target=target[:, :, :vocab],
            tokens=tokens,
            lengths=lengths,
            draft=rows[:, :, :draft_vocab] if draft else None,
            draft_kind=draft or DraftKind.LOGITS,
            draft_column=column if draft else None,
            temperature=how[0],
            top_p=how[1],
            top_k=how[2],
            uniforms=how[3],
        )
    )
    assert len(set(expected.accepted.tolist())) > 1
    for got, wanted in zip(outputs, (expected.accepted, expected.output, expected.next, expected.status), strict=True):
        np.testing.assert_array_equal(got, wanted)


def check_greedy_bfloat16_chain(driver: Driver) -> None:
    """Compare a greedy chain of bfloat16 logits, a type that numpy lacks."""
    rng = np.random.default_rng(5)
    values, bits = bfloat16_bits(rng.normal(0, 3, (3, 3, 11)))
    tokens = values.argmax(-1)[:, :2].astype(np.int32)
    tokens[1, 1] = (tokens[1, 1] + 1) % 11
    lengths = np.array([2, 2, 1], np.int32)
    outputs = empty((3,), (3, 3), (3,), (3,))
    plugin = created(driver, CHAIN, "vocab=11 sampled=0")
    assert plugin.launch([bits, tokens, lengths], outputs, "bfloat16[3,3,11] int32[3,2] int32[3]") == 0, driver.message
    expected = verify_chain(ChainBatch(target=values, tokens=tokens, lengths=lengths))
    assert expected.accepted.tolist() == [2, 1, 1]
    for got, wanted in zip(outputs, (expected.accepted, expected.output, expected.next, expected.status), strict=True):
        np.testing.assert_array_equal(got, wanted)


def check_tree(driver: Driver, mode: Mode) -> None:
    """Compare a tree of one mode."""
    rng = np.random.default_rng(8)
    batch, vocab = 8, 6
    parents = np.tile(np.array([-1, 0, 0, 1, 1, 2, 3], np.int32), (batch, 1))
    nodes = parents.shape[1]
    target = rng.normal(0, 1, (batch, nodes, vocab + 2)).astype(np.float16)
    target[:, :, vocab:] = 50
    draft = rng.normal(0, 1, (batch, nodes, vocab)).astype(np.float16)
    tokens = np.tile(np.array([0, 1, 2, 3, 4, 5, 1], np.int32), (batch, 1))
    limits = np.array([4, 4, 4, 1] * (batch // 4), np.int32)
    how = sampling(rng, batch, nodes)
    sampled = mode is Mode.SAMPLED

    fields = f"vocab={vocab} mode={int(mode)} threshold=0.2 alpha=0.5 draft_kind={int(sampled)}"
    outputs = empty((batch, nodes), (batch,), (batch,), (batch,))
    inputs = [target, tokens, parents, limits, *([draft] if sampled else []), *as_int32(how)]
    assert created(driver, TREE, fields).launch(inputs, outputs) == 0, driver.message

    expected = verify_tree(
        TreeBatch(
            target=target[:, :, :vocab],
            tokens=tokens,
            parents=parents,
            limits=limits,
            draft=draft if sampled else None,
            mode=mode,
            threshold=0.2,
            alpha=0.5,
            temperature=how[0],
            top_p=how[1],
            top_k=how[2],
            uniforms=how[3],
        )
    )
    assert len(set(expected.path_len.tolist())) > 1
    for got, wanted in zip(outputs, (expected.path, expected.path_len, expected.next, expected.status), strict=True):
        np.testing.assert_array_equal(got, wanted)
