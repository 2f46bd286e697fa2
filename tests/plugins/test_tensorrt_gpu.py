# SPDX-License-Identifier: Apache-2.0
"""The life cycle of a TensorRT plugin on a GPU, without TensorRT: create, serialize, onShapeChange, enqueue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.plugins.launches import CHAIN, check_chain, check_greedy_bfloat16_chain, check_tree
from tests.plugins.tensorrt_driver import CudaMemory, Driver, compile_cuda_driver, created
from trtspec.kernels.bit_exact import DraftKind, Mode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    kernels = Path(os.environ.get("TRTSPEC_TEST_LIBRARY", ""))
    if not kernels.is_file():
        pytest.skip("TRTSPEC_TEST_LIBRARY names no library of kernels for this GPU")
    return Driver(compile_cuda_driver(tmp_path_factory.mktemp("driver"), kernels), CudaMemory)


@pytest.mark.parametrize("draft", [None, DraftKind.LOGITS, DraftKind.PROBABILITIES])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_chain_enqueued_on_the_gpu_equals_the_oracle(driver: Driver, draft: DraftKind | None, dtype: str) -> None:
    check_chain(driver, draft, dtype)


def test_greedy_chain_in_bfloat16_on_the_gpu_equals_the_oracle(driver: Driver) -> None:
    check_greedy_bfloat16_chain(driver)


@pytest.mark.parametrize("mode", Mode)
def test_tree_enqueued_on_the_gpu_equals_the_oracle(driver: Driver, mode: Mode) -> None:
    check_tree(driver, mode)


def test_plugin_loaded_from_a_plan_keeps_its_fields(driver: Driver) -> None:
    plugin = created(driver, CHAIN, "vocab=7 draft_kind=1 sampled=0")
    assert plugin.again("from_plan").call("kept_fields") == "vocab=7 draft_kind=1 draft_vocab=0 sampled=0"
