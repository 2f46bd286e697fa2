# SPDX-License-Identifier: Apache-2.0
"""FP8 on a CUDA device: the simulation and the calibration give the results of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests._support.tiny import FAMILY_SHAPES, convert, make_model
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.calibration import measure
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.layers import round_rows_to_e4m3, round_to_e4m3
from trtspec.engine.settings import EngineSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

DEVICE = "cuda"
ROWS, LENGTH = 24, 6
SCHEMES = {"fp8": Scheme("fp8"), "fp8 rowwise": Scheme("fp8_rowwise"), "fp8, cache too": Scheme("fp8", "fp8")}
CASES = [(family, name) for family in FAMILY_SHAPES for name in SCHEMES if (family, name) != ("mixtral", "fp8 rowwise")]
TEXTS = [np.random.default_rng(seed).integers(0, 64, length).tolist() for seed, length in enumerate((1, 7, 40, 120))]
# tolerance after a few roundings to the source's dtype
CLOSE = {"float32": 1e-4, "float16": 2**-7, "bfloat16": 2**-4}
# half precision may change the choice of experts
MEASURED = [(family, dtype) for family in FAMILY_SHAPES for dtype in CLOSE if (family, dtype[-2:]) != ("mixtral", "16")]


def peaks(source: Path, device: str) -> dict[str, dict[str, float]]:
    model = load_model(source, "auto")
    return measure(model.config, model.matched, TEXTS, device=device)


def quantized(root: Path, family: str, name: str) -> Path:
    source = make_model(root / "hf", family)
    return convert(source, root / "c", scheme=SCHEMES[name], activations=Activations(**peaks(source, "cpu")))


def logits(root: Path, device: str) -> Tensor:
    decoder = Decoder(load_checkpoint(root), ROWS, LENGTH, torch.device(device), torch.float32)
    tokens = torch.randint(0, 64, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)
    found = decoder.forward(tokens, decoder.windows.chain([0] * ROWS, LENGTH))
    return found.view(ROWS, LENGTH, -1).cpu()


@pytest.mark.parametrize(("family", "dtype"), MEASURED)
def test_calibration_is_close_to_the_cpu(family: str, dtype: str, tmp_path: Path) -> None:
    source = make_model(tmp_path, family, dtype=dtype)
    found, expected = peaks(source, DEVICE), peaks(source, "cpu")
    for kind, table in expected.items():
        assert found[kind] == pytest.approx(table, rel=CLOSE[dtype]), kind


@pytest.mark.parametrize(("family", "name"), CASES)
@torch.inference_mode()
def test_logits_equal_the_cpu(family: str, name: str, tmp_path: Path) -> None:
    """Except for the few rows with a value on the edge between two FP8 numbers."""
    root = quantized(tmp_path, family, name)
    ours, theirs = logits(root, DEVICE), logits(root, "cpu")
    off = (ours - theirs).abs().amax((1, 2)) / theirs.abs().max()
    assert (off < 1e-4).sum() >= ROWS - 6
    assert off.max() < 0.1


@pytest.mark.parametrize("name", SCHEMES)
def test_default_dtype_generates_complete_texts(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": 128, "device": DEVICE}
    engine = Engine(quantized(tmp_path, "llama", name), None, EngineSettings("ngram", 4, **settings))
    try:
        assert engine.speculator.target.dtype == (torch.bfloat16 if DEVICE == "cuda" else torch.float64)
        results = engine.generate([EngineRequest(tuple(text), 20) for text in TEXTS[:3]])
        assert [len(result.ids) for result in results] == [20] * 3
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_to_e4m3_equals_the_cpu(dtype: torch.dtype) -> None:
    """All 16-bit values and as many random 32-bit values, with a static scale and with per-row scales."""
    if dtype == torch.float32:
        values = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)) * 30
    else:
        values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        values = values[values.isfinite()]
    values = values[: len(values) // 64 * 64].view(-1, 64)
    scale = torch.tensor(0.37)
    assert torch.equal(round_to_e4m3(values.to(DEVICE), scale.to(DEVICE)).cpu(), round_to_e4m3(values, scale))
    assert torch.equal(round_rows_to_e4m3(values.to(DEVICE)).cpu(), round_rows_to_e4m3(values))
