# SPDX-License-Identifier: Apache-2.0
"""The torch engine on a CUDA device: the text of the CPU in float32, reproducible sampling, half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests._support.tiny import FAMILY_SHAPES, convert, make_llama, make_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.settings import EngineSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
LEN = 40


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    target = convert(make_llama(root / "hf", scale=0.15), root / "target")
    return target, convert(make_llama(root / "hf-draft", seed=1, num_hidden_layers=1), root / "draft")


def texts(pair: tuple[Path, Path], device: str, dtype: str, requests: list[EngineRequest]) -> list[tuple[int, ...]]:
    settings = EngineSettings("draft_target", 4, max_batch_size=4, max_seq_len=128, device=device, dtype=dtype)
    engine = Engine(*pair, settings)
    try:
        return [result.ids for result in engine.generate(requests)]
    finally:
        engine.close()


def requests_of(count: int, **options: object) -> list[EngineRequest]:
    rng = np.random.default_rng(3)
    prompts = [tuple(rng.integers(0, 64, rng.integers(1, 30)).tolist()) for _ in range(count)]
    return [EngineRequest(prompt, LEN, **options) for prompt in prompts]  # type: ignore[arg-type]


def test_greedy_text_in_float32_equals_the_cpu(pair: tuple[Path, Path]) -> None:
    requests = requests_of(6)
    assert texts(pair, "cuda", "float32", requests) == texts(pair, "cpu", "float32", requests)


@pytest.mark.parametrize("family", FAMILY_SHAPES)
@torch.inference_mode()
def test_logits_in_float32_equal_the_cpu(family: str, tmp_path: Path) -> None:
    root, tokens = convert(make_model(tmp_path / "hf", family), tmp_path / "c"), torch.arange(60).view(2, 30)
    decoders = [
        Decoder(load_checkpoint(root), 2, 30, torch.device(device), torch.float32) for device in ("cpu", "cuda")
    ]
    ours = [decoder.forward(tokens.to(decoder.device), decoder.windows.chain([0, 0], 30)).cpu() for decoder in decoders]
    torch.testing.assert_close(ours[0], ours[1], rtol=1e-4, atol=1e-4)


def test_sampled_text_with_the_same_seed_is_reproducible(pair: tuple[Path, Path]) -> None:
    requests = requests_of(6, sampling=SamplingOptions(1.0, seed=5))
    assert texts(pair, "cuda", "float32", requests) == texts(pair, "cuda", "float32", requests)


def test_bfloat16_generates_complete_texts(pair: tuple[Path, Path]) -> None:
    assert all(len(ids) == LEN for ids in texts(pair, "cuda", "auto", requests_of(6)))
