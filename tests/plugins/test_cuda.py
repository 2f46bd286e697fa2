# SPDX-License-Identifier: Apache-2.0
"""The library on a GPU passes the host's checks, returns the reference's ids, without memory errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.exactness import BLOCK_CHECKS, CHAIN_CHECKS, TREE_CHECKS
from tests.plugins.batches import DRAFTS, DTYPES, Shape, assert_equal, random_chains, random_trees
from tests.plugins.rules import Rules
from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.bit_exact import Mode, compact_kv, kv_moves, verify_block, verify_chain, verify_tree
from trtspec.kernels.build import build_library, gpu_architecture, plan_library

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

SHAPES = [
    Shape(vocab, dtype, draft)
    for vocab, dtype, draft in product((7, 1000, 8209, 32000, 128256, 151936), DTYPES, DRAFTS)
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    """All plugins, compiled for this GPU, or the library in TRTSPEC_TEST_LIBRARY."""
    given = Path(os.environ.get("TRTSPEC_TEST_LIBRARY", ""))
    if given.is_file():
        return load_library(given)
    major, minor = torch.cuda.get_device_capability()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        try:
            spec = plan_library(architectures=(gpu_architecture(10 * major + minor),))
        except TrtspecError as error:
            pytest.skip(error.message)
        return load_library(build_library(spec))


@pytest.mark.parametrize("check", CHAIN_CHECKS)
def test_chain_kernel_passes_the_checks(library: KernelLibrary, check: str) -> None:
    CHAIN_CHECKS[check](Rules(library, "cuda").chain)


@pytest.mark.parametrize("check", BLOCK_CHECKS)
def test_block_kernel_passes_the_checks(library: KernelLibrary, check: str) -> None:
    BLOCK_CHECKS[check](Rules(library, "cuda").block)


@pytest.mark.parametrize("check", TREE_CHECKS)
def test_tree_kernel_passes_the_checks(library: KernelLibrary, check: str) -> None:
    TREE_CHECKS[check](Rules(library, "cuda").tree)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chains_and_blocks_equal_the_numpy_reference(library: KernelLibrary, shape: Shape) -> None:
    batch = random_chains(shape)
    for padding in (0, 3):
        rules = Rules(library, "cuda", DTYPES[shape.dtype], padding)
        assert_equal(rules.chain(batch), verify_chain(batch))
        assert_equal(rules.block(batch), verify_block(batch))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1000, 32000])
def test_trees_equal_the_numpy_reference(library: KernelLibrary, vocab: int, dtype: str, mode: Mode) -> None:
    for seed, draft in enumerate(DRAFTS[1:] if mode == Mode.SAMPLED else DRAFTS[:1]):
        batch = random_trees(Shape(vocab, dtype, draft, seed=seed), mode)
        assert_equal(Rules(library, "cuda", DTYPES[dtype], padding=1).tree(batch), verify_tree(batch))


def test_thousand_runs_give_identical_results(library: KernelLibrary) -> None:
    """Blocks and warps run in a different order each time."""
    batch = random_chains(Shape(128256, "float16", "logits", requests=33))
    rules = Rules(library, "cuda", torch.float16)
    arguments = rules.arguments_of(batch)
    first = library.verify_chain(**arguments)
    for _ in range(1000):
        again = library.verify_chain(**arguments)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, again, strict=True))


@pytest.mark.parametrize(("dtype", "values"), [(np.float16, 128), (np.float32, 3), (np.uint8, 33)])
@pytest.mark.parametrize("paged", [False, True])
def test_compact_kv_equals_the_reference(library: KernelLibrary, dtype: Any, values: int, paged: bool) -> None:
    rng = np.random.default_rng(values)
    path = np.array([[1, 3, 6, 11], [2, -1, -1, -1], [-1, -1, -1, -1], [4, 5, 9, -1]], dtype=np.int32)
    lens, start = (path >= 0).sum(1).astype(np.int32), np.array([0, 5, 2, 7], dtype=np.int32)
    rows = (rng.random((6, 4, 20, values)) * 200).astype(dtype)
    expected = np.stack([compact_kv(plane, kv_moves(path, start)) for plane in rows])
    blocks = rng.permutation(20).reshape(4, 5).astype(np.int32)
    stored = rows
    if paged:
        stored = np.empty((6, 20, 4, values), dtype=dtype)
        stored[:, blocks] = rows.reshape(6, 4, 5, 4, values)
    cache = torch.from_numpy(stored.copy()).cuda()
    given = {"path": path, "path_len": lens, "start": start} | ({"block_table": blocks} if paged else {})
    library.compact_kv(cache=cache, **{name: torch.from_numpy(array).cuda() for name, array in given.items()})
    moved = cache.cpu().numpy()
    assert (moved[:, blocks].reshape(rows.shape) if paged else moved).tolist() == expected.tolist()


SANITIZER, SANITIZER_S = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"), 300
SANITIZED = """
import sys
import torch
from tests.plugins.batches import Shape, random_chains, random_trees
from tests.plugins.rules import Rules
from trtspec.kernels.bindings import load_library
from trtspec.kernels.bit_exact import Mode
from pathlib import Path

rules = Rules(load_library(Path(sys.argv[1])), "cuda", torch.float16, padding=3)
for vocab in (97, 8209, 32001):
    for draft in ("deterministic", "logits", "probabilities", "reduced"):
        rules.chain(random_chains(Shape(vocab, "float16", draft)))
        rules.block(random_chains(Shape(vocab, "float16", draft)))
    for mode in Mode:
        rules.tree(random_trees(Shape(vocab, "float16", "logits"), mode))
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_compute_sanitizer_reports_no_errors(library: KernelLibrary, tmp_path: Path, tool: str) -> None:
    sanitizer = next(filter(None, map(shutil.which, SANITIZER)), None)
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH")
    script = tmp_path / "run.py"
    script.write_text(SANITIZED)
    # only memory accesses are checked: torch makes CUDA calls that may fail legitimately
    options = ["--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no"]
    # initcheck must also observe the writes of other kernels
    chosen = [] if tool == "initcheck" else ["--kernel-name", "kernel_substring=verify_kernel"]
    command = [sanitizer, *options, *chosen, sys.executable, str(script), str(library.path)]
    root = Path(__file__).parents[2]
    environment = _environment(root)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=root, env=environment, timeout=SANITIZER_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def _environment(root: Path) -> dict[str, str]:
    """Return an environment that can import the tests and in which torch allocates each tensor separately."""
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
