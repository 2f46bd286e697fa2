# SPDX-License-Identifier: Apache-2.0
"""Texts with sliding windows, capped scores and partial rotation: with every drafter they equal transformers'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_llama, make_model, reference_model
from tests.engine.lossless import assert_greedy_text
from tests.methods.heads import convert_with, random_heads, save_heads
from trtspec.engine.engine import Engine
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

MAX_LEN = 128
PART_OF_A_HEAD = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 5.0],
}  # fmt: skip
# Windows shorter than most prompts, and one shorter than the depth of the drafted trees.
TARGETS: dict[str, dict[str, Any]] = {
    "gemma2": {"family": "gemma2", "sliding_window": 12, "num_hidden_layers": 4, "final_logit_softcapping": 4.0},
    "gemma3": {"family": "gemma3", "sliding_window": 3, "num_hidden_layers": 7},
    "mistral": {"family": "mistral", "sliding_window": 10},
    "phi3": {"family": "phi3", "sliding_window": 16, "rope_parameters": PART_OF_A_HEAD},
    "longrope": {"family": "phi3", "rope_parameters": LONGROPE, "original_max_position_embeddings": MAX_LEN},
}
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_target": {"draft_len": 4},
    "ngram": {"draft_len": 4},
    "lookahead": {},
    "swift": {"draft_len": 3, "options": {"skip": {"attention": [1], "mlp": [0]}}},
    "medusa": {"options": {"choices": "mc_sim_7b_63"}},
}


@dataclass(frozen=True)
class Target:
    """A target's source, its conversions alone and with Medusa heads, and transformers' model of it."""

    source: Path
    plain: Path
    headed: Path
    model: Any


@pytest.fixture(scope="module", params=TARGETS.values(), ids=TARGETS.keys())
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    root = tmp_path_factory.mktemp("target")
    source = make_model(root / "hf", **request.param)
    headed = convert_with(source, save_heads(root / "heads", random_heads(5)), root / "headed")
    return Target(source, convert(source, root / "plain"), headed, reference_model(source))


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_equals_transformers(method: str, target: Target, tmp_path: Path) -> None:
    draft = None
    if method == "draft_target":
        draft = convert(make_llama(tmp_path / "hf", seed=1, num_hidden_layers=1), tmp_path / "draft")
    settings = EngineSettings(method, max_batch_size=8, max_seq_len=MAX_LEN, device="cpu", **METHODS[method])
    engine = Engine(target.headed if method == "medusa" else target.plain, draft, settings)
    stats = assert_greedy_text(engine, target.model)
    engine.close()
    assert any(one.drafted for one in stats) == (method != "none")


def test_target_as_draft_is_always_accepted(target: Target) -> None:
    """The target as draft agrees with itself, in single steps and over several tokens in one pass."""
    settings = EngineSettings("draft_target", draft_len=4, max_batch_size=8, max_seq_len=MAX_LEN, device="cpu")
    engine = Engine(target.plain, target.plain, settings)
    stats = assert_greedy_text(engine, target.model)
    engine.close()
    assert sum(one.accepted for one in stats) == sum(one.drafted for one in stats)
