# SPDX-License-Identifier: Apache-2.0
"""The library on a CPU passes the checks, and its ids equal the reference's for all thread counts and layouts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.exactness import BLOCK_CHECKS, CHAIN_CHECKS, TREE_CHECKS
from tests.plugins.batches import DRAFTS, DTYPES, Shape, assert_equal, random_chains, random_trees
from tests.plugins.rules import Rules
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.bit_exact import Mode, compact_kv, kv_moves, verify_block, verify_chain, verify_tree

SMALL = [Shape(vocab, dtype, draft) for vocab, dtype, draft in product((7, 1000), DTYPES, DRAFTS)]
LARGE = [
    Shape(32000, "float32", "logits"),
    Shape(32000, "bfloat16", "probabilities"),
    Shape(128256, "float16", "deterministic"),
    Shape(128256, "bfloat16", "reduced", requests=3),
    Shape(151936, "float32", "probabilities", requests=2),
    Shape(151936, "float16", "logits", requests=2),
]


@pytest.mark.parametrize("check", CHAIN_CHECKS)
def test_chain_kernel_passes_the_checks(cpu_library: KernelLibrary, check: str) -> None:
    CHAIN_CHECKS[check](Rules(cpu_library).chain)


@pytest.mark.parametrize("check", BLOCK_CHECKS)
def test_block_kernel_passes_the_checks(cpu_library: KernelLibrary, check: str) -> None:
    BLOCK_CHECKS[check](Rules(cpu_library).block)


@pytest.mark.parametrize("check", TREE_CHECKS)
def test_tree_kernel_passes_the_checks(cpu_library: KernelLibrary, check: str) -> None:
    TREE_CHECKS[check](Rules(cpu_library).tree)


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_chains_of_all_lengths_equal_the_reference(cpu_library: KernelLibrary, shape: Shape) -> None:
    rules = Rules(cpu_library, dtype=DTYPES[shape.dtype], padding=3)
    for draft_len, requests in product(range(1, 9), (1, 7, 13)):
        batch = random_chains(replace(shape, draft_len=draft_len, requests=requests, seed=draft_len + requests))
        assert_equal(rules.chain(batch), verify_chain(batch))
        assert_equal(rules.block(batch), verify_block(batch))


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_chains_over_full_vocabularies_equal_the_reference(cpu_library: KernelLibrary, shape: Shape) -> None:
    batch = random_chains(shape)
    rules = Rules(cpu_library, dtype=DTYPES[shape.dtype], padding=8)
    assert_equal(rules.chain(batch), verify_chain(batch))
    assert_equal(rules.block(batch), verify_block(batch))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_trees_of_all_sizes_equal_the_reference(cpu_library: KernelLibrary, shape: Shape, mode: Mode) -> None:
    if mode == Mode.SAMPLED and shape.draft == "deterministic":
        shape = replace(shape, draft="logits", seed=100)
    rules = Rules(cpu_library, dtype=DTYPES[shape.dtype], padding=3)
    for nodes in (1, 2, 9, 24):
        batch = random_trees(replace(shape, seed=shape.seed + nodes), mode, nodes)
        assert_equal(rules.tree(batch), verify_tree(batch))


@pytest.mark.parametrize("mode", Mode)
def test_trees_over_a_full_vocabulary_equal_the_reference(cpu_library: KernelLibrary, mode: Mode) -> None:
    shape = Shape(128256, "bfloat16", "reduced", requests=2)
    batch = random_trees(shape, mode)
    assert_equal(Rules(cpu_library, dtype=torch.bfloat16).tree(batch), verify_tree(batch))


@pytest.mark.parametrize("requests", [1, 3, 7])
@pytest.mark.parametrize("draft", DRAFTS)
def test_number_of_threads_does_not_change_the_results(cpu_library: KernelLibrary, draft: str, requests: int) -> None:
    chains = random_chains(Shape(5003, draft=draft, requests=requests))
    trees = random_trees(Shape(5003, draft=draft, requests=requests), Mode.TYPICAL)
    of_chains, of_blocks, of_trees = verify_chain(chains), verify_block(chains), verify_tree(trees)
    for threads in (1, 2, 3, 8):
        for name, got in (
            cpu_library.verify_chain(**vars(chains), threads=threads, kernel="verify_block")._asdict().items()
        ):
            assert got.tolist() == getattr(of_blocks, name).tolist(), (name, threads)
        for name, got in cpu_library.verify_chain(**vars(chains), threads=threads)._asdict().items():
            assert got.tolist() == getattr(of_chains, name).tolist(), (name, threads)
        for name, got in cpu_library.verify_tree(**vars(trees), threads=threads)._asdict().items():
            assert got.tolist() == getattr(of_trees, name).tolist(), (name, threads)


def test_broadcast_target_row_equals_its_copies(cpu_library: KernelLibrary) -> None:
    chains = random_chains(Shape(1003, draft="logits", requests=5))
    one = torch.from_numpy(chains.target[:1, :1]).expand(5, 4, -1)
    assert one.stride() == (0, 0, 1)
    batch = replace(chains, target=one.numpy().copy())
    got = cpu_library.verify_chain(**{**vars(chains), "target": one.numpy()})
    assert got.output.tolist() == verify_chain(batch).output.tolist()


def test_tensor_arguments_return_tensors(cpu_library: KernelLibrary) -> None:
    chains = random_chains(Shape(40, draft="logits"))
    tensors = {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in vars(chains).items()}
    got = cpu_library.verify_chain(**tensors)
    assert all(isinstance(each, torch.Tensor) and each.dtype == torch.int32 for each in got)
    assert got.output.tolist() == verify_chain(chains).output.tolist()


PATH = np.array([[1, 3, 6, -1], [2, -1, -1, -1], [-1, -1, -1, -1], [1, 2, 3, 4]], dtype=np.int32)
START = np.array([0, 5, 2, 7], dtype=np.int32)


def compact(library: KernelLibrary, cache: Any, **more: Any) -> None:
    lens = (PATH >= 0).sum(1).astype(np.int32)
    library.compact_kv(cache=cache, path=PATH, path_len=lens, start=START, **more)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
@pytest.mark.parametrize("threads", [1, 3])
def test_compact_kv_of_rows_equals_the_reference(cpu_library: KernelLibrary, dtype: type, threads: int) -> None:
    """[layers, keys and values, heads, rows, slots, values], in this order, and with heads within slots."""
    rng = np.random.default_rng(0)
    for order in ((0, 1, 2, 3, 4, 5), (0, 3, 1, 4, 2, 5)):
        shape = np.array((2, 2, 3, 4, 16, 5))[list(order)]
        stored = (rng.random(shape) * 200).astype(dtype)
        cache = stored.transpose(np.argsort(order))
        planes = cache.copy().reshape(-1, 4, 16, 5)
        expected = np.stack([compact_kv(plane, kv_moves(PATH, START)) for plane in planes])
        compact(cpu_library, cache, threads=threads)
        assert cache.reshape(expected.shape).tolist() == expected.tolist()


def test_compact_kv_of_blocks_equals_the_reference(cpu_library: KernelLibrary) -> None:
    rng = np.random.default_rng(1)
    cache = rng.random((3, 20, 4, 6)).astype(np.float32)
    table = rng.permutation(20).reshape(4, 5).astype(np.int32)
    rows = cache[:, table].reshape(3, 4, 20, 6)
    expected = np.stack([compact_kv(plane, kv_moves(PATH, START)) for plane in rows])
    compact(cpu_library, cache, block_table=table)
    assert cache[:, table].reshape(3, 4, 20, 6).tolist() == expected.tolist()
