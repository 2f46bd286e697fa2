# SPDX-License-Identifier: Apache-2.0
"""The engine with compiled acceptance rules: the same output as with torch's rules, and the target's distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_model, reference_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    assert_greedy_text,
    assert_targets_distribution,
    random_prompts,
)
from tests.methods.eagle_heads import convert_with, random_head, save_head
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, EngineResult, SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.kernels.verifier import CompiledVerifier, DraftVerifier

pytestmark = pytest.mark.integration

CHAINS: dict[str, Any] = {"method": "draft_target", "draft_len": 3}
BLOCKS: dict[str, Any] = CHAINS | {"verify": "block"}
STATIC: dict[str, Any] = {"method": "eagle", "options": {"choices": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]}}
DYNAMIC: dict[str, Any] = {"method": "eagle", "options": {"dynamic": True, "top_k": 3, "depth": 3, "nodes": 6}}
SAMPLINGS = (SamplingOptions(1.0), SamplingOptions(0.7, top_k=5), SamplingOptions(1.2, top_p=0.8), SamplingOptions())


class Checkpoints:
    """A random target with a random EAGLE head, and a random draft model."""

    def __init__(self, root: Path) -> None:
        self.source = make_model(root / "hf", family="llama")
        self.target = convert_with(self.source, save_head(root / "head", random_head()), root / "target", {})
        self.draft = convert(make_model(root / "hf-draft", family="llama", num_hidden_layers=1), root / "draft")

    def load(self, how: dict[str, Any], *kernels: Path) -> Engine:
        settings = EngineSettings(**how, max_batch_size=8, max_seq_len=128, device="cpu", kernels=kernels)
        return Engine(self.target, self.draft if how["method"] == "draft_target" else None, settings)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


def texts(engine: Engine) -> list[EngineResult]:
    """Return the engine's output for a batch of requests with different sampling options; close the engine."""
    hows = [SAMPLINGS[number % len(SAMPLINGS)] for number in range(8)]
    requests = [EngineRequest(prompt, 60, how) for prompt, how in zip(random_prompts(8), hows, strict=True)]
    results = engine.generate(requests)
    engine.close()
    return results


@pytest.mark.parametrize(
    "how", [CHAINS, BLOCKS, STATIC, DYNAMIC], ids=["chain", "block", "static tree", "dynamic tree"]
)
class TestCompiled:
    def test_sampled_text_equals_torch(
        self, how: dict[str, Any], checkpoints: Checkpoints, kernel_library: Path
    ) -> None:
        compiled, plain = checkpoints.load(how, kernel_library), checkpoints.load(how)
        assert isinstance(compiled.speculator.verifier, CompiledVerifier)
        assert type(plain.speculator.verifier) is DraftVerifier
        results = texts(compiled)
        assert results == texts(plain)
        assert sum(result.stats.accepted for result in results) > 5

    def test_greedy_text_equals_transformers(
        self, how: dict[str, Any], checkpoints: Checkpoints, kernel_library: Path
    ) -> None:
        engine = checkpoints.load(how, kernel_library)
        assert_greedy_text(engine, reference_model(checkpoints.source), 12)
        engine.close()


@pytest.mark.parametrize("verify", ["standard", "block"])
def test_sampled_text_has_the_targets_distribution(
    verify: str, tmp_path: Path, kernel_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [make_model(tmp_path / f"hf{seed}", seed=seed, **DISTRIBUTION_SHAPE) for seed in (0, 1)]
    target, draft = (convert(source, tmp_path / f"c{seed}") for seed, source in enumerate(sources))
    how: dict[str, Any] = {"max_seq_len": 32, "device": "cpu", "verify": verify}
    settings = EngineSettings("draft_target", 3, kernels=(kernel_library,), **how)
    engine = Engine(target, draft, settings)
    assert_targets_distribution(engine, reference_model(sources[0]), monkeypatch, SamplingOptions(0.8))
    engine.close()
