# SPDX-License-Identifier: Apache-2.0
"""Texts beyond max_position_embeddings equal transformers' if the rotary scaling supports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.families.sources import edit
from trtspec.core.errors import TrtspecError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.settings import EngineSettings

POSITIONS, LONGEST = 64, 128


def engine_of(target: Path) -> Engine:
    return Engine(
        target, None, EngineSettings("ngram", draft_len=3, max_seq_len=LONGEST, device="cpu", dtype="float32")
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "linear", "factor": 2.0},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_text_beyond_max_position_embeddings_equals_transformers(
    family: str, scaling: dict[str, Any], tmp_path: Path
) -> None:
    source = make_model(tmp_path / "hf", family, max_position_embeddings=POSITIONS, scale=0.35)
    edit(source, rope_parameters=None, rope_theta=10000.0, rope_scaling=scaling)
    prompt = [7 * number % 64 for number in range(60)]
    engine = engine_of(convert(source, tmp_path / "c"))
    (result,) = engine.generate([EngineRequest(tuple(prompt), 40)])
    engine.close()
    assert list(result.ids) == greedy(reference_model(source), prompt, 40)


def test_dynamic_scaling_beyond_max_position_embeddings_is_rejected(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama", max_position_embeddings=POSITIONS)
    edit(source, rope_parameters=None, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(TrtspecError, match=f"max_seq_len {LONGEST} is more than the target's {POSITIONS} positions"):
        engine_of(convert(source, tmp_path / "c"))
