# SPDX-License-Identifier: Apache-2.0
"""LongRoPE's two sets of factors: the maximum length selects one, and `check` reports the effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests._support.tiny import convert, make_model, reference_model
from tests.backends.contexts import make_context
from trtspec.backends.embedded import check
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.settings import EngineSettings

ORIGINAL = 48
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 5.0],
}  # fmt: skip


def logits_of(target: Path, max_seq_len: int, prompt: tuple[int, ...]) -> torch.Tensor:
    """Return the logits after a prompt of an engine for texts of this length."""
    engine = Engine(target, None, EngineSettings("none", max_seq_len=max_seq_len, device="cpu"))
    (result,) = engine.generate([EngineRequest(prompt, 1, return_logits=True)])
    engine.close()
    assert result.scores is not None
    assert result.scores.logits is not None
    return torch.from_numpy(result.scores.logits[0])


@pytest.mark.integration
@torch.inference_mode()
def test_max_seq_len_selects_the_factors_for_all_texts(tmp_path: Path) -> None:
    """Engines for short texts match transformers on short texts, engines for long texts on long texts."""
    rope = {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL}
    source = make_model(tmp_path / "hf", "phi3", **rope)
    target, model = convert(source, tmp_path / "c"), reference_model(source)
    long, short = tuple(range(64)), tuple(range(20))
    expected = {text: model(torch.tensor([text])).logits[0, -1] for text in (long, short)}
    atol = 1e-5 * max(float(logits.abs().max()) for logits in expected.values())
    torch.testing.assert_close(logits_of(target, ORIGINAL, short), expected[short], rtol=0, atol=atol)
    torch.testing.assert_close(logits_of(target, ORIGINAL + 20, long), expected[long], rtol=0, atol=atol)
    assert (logits_of(target, ORIGINAL + 1, short) - expected[short]).abs().max() > 100 * atol


@pytest.mark.parametrize(("longest", "said"), [(4096, False), (4097, True)])
def test_check_warns_if_short_texts_use_the_long_factors(longest: int, said: bool) -> None:
    case = make_context("phi-4-mini", engine__backend="embedded", engine__max_seq_len=longest)
    found = [(each.path, each.severity, each.hint) for each in check(case)]
    expected = ("target.model", "warning", "engine.max_seq_len: 4096, if no text is longer")
    assert found == [expected] * said
