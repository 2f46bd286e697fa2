# SPDX-License-Identifier: Apache-2.0
"""The code of a GPU's threads, on emulated machines, with the checks of all implementations (`emulated.cpp`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

from tests.kernels.exactness import BLOCK_CHECKS, CHAIN_CHECKS, TREE_CHECKS
from tests.plugins.batches import DRAFTS, DTYPES, Shape, assert_equal, random_chains, random_trees
from tests.plugins.emulation import HERE, PLUGINS, compile_emulated
from tests.plugins.rules import Rules
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.bit_exact import Mode, compact_kv, kv_moves, verify_block, verify_chain, verify_tree


@dataclass(frozen=True)
class Gpu:
    """The properties that a launch plan depends on: major architecture, and shared memory per block in bytes."""

    major: int
    shared_bytes: int


H200 = Gpu(9, 232448)
RTX_5090 = Gpu(12, 101376)
A100 = Gpu(8, 166912)
L40 = Gpu(8, 101376)
GPUS = {"h200": H200, "rtx5090": RTX_5090, "a100": A100, "l40": L40}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    """The emulated kernels as a library with the usual interface."""
    sources = (HERE / "emulated.cpp", PLUGINS / "common" / "abi.cpp")
    return load_library(compile_emulated(tmp_path_factory.mktemp("emulated"), *sources))


def emulate(library: KernelLibrary, gpu: Gpu, order: int = 0) -> None:
    """Emulate a GPU whose threads run in this order."""
    library.handle.emulate(gpu.major, gpu.shared_bytes, ctypes.c_uint64(order))


def last_launch(library: KernelLibrary) -> tuple[int, int, int]:
    """Return blocks, threads per block and slots of the last launch."""
    blocks, threads, slots = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.handle.last_launch(ctypes.byref(blocks), ctypes.byref(threads), ctypes.byref(slots))
    return blocks.value, threads.value, slots.value


# whole vocabularies are slow on an emulated machine; they differ only in launches, which are tested below
QUICK_CHAIN_CHECKS = [name for name in CHAIN_CHECKS if not name.startswith("vocabulary of")]


@pytest.mark.parametrize("check", QUICK_CHAIN_CHECKS)
def test_chain_kernel_passes_the_checks(emulated: KernelLibrary, check: str) -> None:
    emulate(emulated, H200)
    CHAIN_CHECKS[check](Rules(emulated).chain)


@pytest.mark.parametrize(
    "check", [name for name in BLOCK_CHECKS if name in QUICK_CHAIN_CHECKS or name not in CHAIN_CHECKS]
)
def test_block_kernel_passes_the_checks(emulated: KernelLibrary, check: str) -> None:
    emulate(emulated, H200)
    BLOCK_CHECKS[check](Rules(emulated).block)


@pytest.mark.parametrize("check", TREE_CHECKS)
def test_tree_kernel_passes_the_checks(emulated: KernelLibrary, check: str) -> None:
    emulate(emulated, H200)
    TREE_CHECKS[check](Rules(emulated).tree)


@pytest.mark.parametrize(
    ("gpu", "vocab", "dtype", "draft", "launch"),
    [
        # rows of one warp, of several warps, of a block; then of clusters
        ("h200", 97, "float32", "logits", (1, 32, 4)),
        ("h200", 1003, "float16", "logits", (1, 128, 4)),
        ("h200", 3001, "bfloat16", "deterministic", (1, 512, 2)),
        ("h200", 8191, "float32", "probabilities", (4, 512, 2)),
        ("h200", 33001, "float32", "logits", (8, 512, 4)),
        # the next rows fit in addition to the current ones, or do not, or no row fits
        ("rtx5090", 128256, "float16", "logits", (8, 512, 2)),
        ("a100", 33001, "bfloat16", "reduced", (1, 512, 2)),
        ("a100", 33001, "float32", "logits", (1, 512, 0)),
        ("l40", 33001, "bfloat16", "deterministic", (1, 512, 1)),
    ],
)
def test_every_launch_configuration_equals_the_numpy_reference(
    emulated: KernelLibrary, gpu: str, vocab: int, dtype: str, draft: str, launch: tuple[int, int, int]
) -> None:
    batch = random_chains(Shape(vocab, dtype, draft, requests=3 if vocab > 10**5 else 5, draft_len=2, seed=1))
    emulate(emulated, GPUS[gpu], order=vocab)
    assert_equal(Rules(emulated, dtype=DTYPES[dtype], padding=3).chain(batch), verify_chain(batch))
    assert last_launch(emulated) == launch


@pytest.mark.parametrize(("order", "draft"), list(enumerate(DRAFTS, 1)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_chains_in_any_thread_order_equal_the_reference(
    emulated: KernelLibrary, dtype: str, draft: str, order: int
) -> None:
    """Rows have different alignments and consist of four blocks."""
    vocab = 4099 if dtype == "float32" else 8209
    batch = random_chains(Shape(vocab, dtype, draft, seed=order))
    emulate(emulated, H200, order)
    rules = Rules(emulated, dtype=DTYPES[dtype], padding=order)
    assert_equal(rules.chain(batch), verify_chain(batch))
    assert_equal(rules.block(batch), verify_block(batch))
    assert last_launch(emulated)[:2] == (4, 512)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("dtype", DTYPES)
def test_trees_in_any_thread_order_equal_the_reference(emulated: KernelLibrary, dtype: str, mode: Mode) -> None:
    for order, draft in enumerate(DRAFTS[1:] if mode == Mode.SAMPLED else DRAFTS[:1]):
        batch = random_trees(Shape(2100, dtype, draft, seed=order), mode)
        emulate(emulated, H200, order)
        assert_equal(Rules(emulated, dtype=DTYPES[dtype], padding=1).tree(batch), verify_tree(batch))


def random_paths(rng: np.random.Generator, rows: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return paths [rows, nodes] of ascending nodes, -1 beyond the last, and their lengths [rows]; one is empty."""
    path = np.full((rows, nodes), -1, dtype=np.int32)
    path_len = rng.integers(0, nodes, rows).astype(np.int32)
    path_len[0] = 0
    for row, length in enumerate(path_len):
        path[row, :length] = np.sort(rng.choice(np.arange(1, nodes), length, replace=False))
    return path, path_len


# values per slot, and the widest possible loads: by the vector's size or, if it is odd, by its alignment
VECTORS = [
    ("float16", 64, 0),
    ("uint8", 24, 0),
    ("float32", 3, 0),
    ("uint16", 37, 0),
    ("uint8", 33, 0),
    ("uint8", 64, 4),
]


@pytest.mark.parametrize(("dtype", "values", "lead"), VECTORS)
def test_compact_kv_equals_the_reference(emulated: KernelLibrary, dtype: str, values: int, lead: int) -> None:
    rng = np.random.default_rng(values)
    path, path_len = random_paths(rng, rows=5, nodes=14)
    starts = rng.integers(0, 9, 5).astype(np.int32)
    memory = rng.integers(0, 200, (2, 3, 5, 24, lead + values)).astype(dtype)
    cache = memory[..., lead:]
    moves = kv_moves(path, starts)
    assert len(moves) > 5
    expected = np.stack([compact_kv(plane, moves) for plane in cache.reshape(6, 5, 24, values)]).reshape(cache.shape)
    emulate(emulated, H200, order=values)
    emulated.compact_kv(cache=cache, path=path, path_len=path_len, start=starts)
    assert cache.tolist() == expected.tolist()


def test_paged_compact_kv_equals_the_reference(emulated: KernelLibrary) -> None:
    """Blocks of four slots, in random positions in the cache."""
    rng = np.random.default_rng(0)
    path, path_len = random_paths(rng, rows=3, nodes=12)
    starts = np.array([1, 6, 3], dtype=np.int32)
    cache = rng.normal(size=(2, 20, 4, 8)).astype(np.float32)
    table = rng.permutation(20)[:15].reshape(3, 5).astype(np.int32)
    expected = cache.copy()
    for plane in expected:
        rows = compact_kv(plane[table].reshape(3, 20, 8), kv_moves(path, starts))
        plane[table] = rows.reshape(3, 5, 4, 8)
    assert (expected != cache).any()
    emulated.compact_kv(cache=cache, path=path, path_len=path_len, start=starts, block_table=table)
    assert cache.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", [1, 2])
def test_random_batches_cover_every_accepted_length(seed: int) -> None:
    """Equal results prove little unless the results vary."""
    results = [verify_chain(random_chains(Shape(1000, draft=draft, seed=seed, requests=14))) for draft in DRAFTS]
    assert {int(n) for result in results for n in result.accepted} == {0, 1, 2, 3}
    trees = [verify_tree(random_trees(Shape(1000, draft="logits", seed=seed, requests=14), mode)) for mode in Mode]
    assert {int(n) for result in trees for n in result.path_len} >= {0, 1, 2}
