# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding in the engine: the text is the target's, and drafts come from earlier answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine import lossless
from tests.engine.drafters.looping import make_looping_model
from tests.engine.lossless import DISTRIBUTION_SHAPE, SHAPES, random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

NEW_TOKENS = 60
ALONE = {"max_cached_requests": 0}  # a request drafts only from its own text, so runs are reproducible


def make_engine(target: Path, draft_len: int = 24, options: dict[str, Any] | None = None, **settings: Any) -> Engine:
    chosen = {"max_batch_size": 8, "max_seq_len": 160, "device": "cpu"} | settings
    return Engine(target, None, EngineSettings("suffix", draft_len, options or {}, **chosen))


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("looping")
    source = make_looping_model(root / "hf")
    return convert(source, root / "target"), reference_model(source)


@pytest.fixture(scope="module")
def distribution_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("distribution")
    source = make_model(root / "hf", **DISTRIBUTION_SHAPE)
    return convert(source, root / "target"), reference_model(source)


@pytest.fixture
def distribution_engine(distribution_model: tuple[Path, Any]) -> Iterator[Engine]:
    engine = make_engine(distribution_model[0], 3, {**ALONE, "min_token_prob": 0.0, "max_spec_factor": 4.0})
    yield engine
    engine.close()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_greedy_text_equals_transformers(shape: dict[str, Any], tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", **shape)
    engine = make_engine(convert(source, tmp_path / "target"), options=ALONE)
    stats = lossless.assert_greedy_text(engine, reference_model(source))
    engine.close()
    assert sum(one.drafted for one in stats) > 0


def test_greedy_text_with_rows_joining_at_any_length_equals_transformers(looping: tuple[Path, Any]) -> None:
    engine = make_engine(looping[0], options=ALONE, max_batch_size=3)
    stats = lossless.assert_greedy_text(engine, looping[1])
    engine.close()
    assert max(one.mean_accepted_len for one in stats) > 2


@pytest.mark.parametrize("cached", [1, 10_000])
def test_cached_answers_reduce_the_steps_of_repeated_requests(cached: int, looping: tuple[Path, Any]) -> None:
    target, model = looping
    engine = make_engine(target, options={"max_cached_requests": cached}, max_batch_size=3)
    prompts = random_prompts(6)
    requests = [EngineRequest(prompt, NEW_TOKENS) for prompt in prompts]
    first, again = engine.generate(requests), engine.generate(requests)
    for prompt, one, other in zip(prompts, first, again, strict=True):
        assert list(one.ids) == list(other.ids) == greedy(model, list(prompt), NEW_TOKENS)
    steps = [sum(result.stats.steps for result in results) for results in (first, again)]
    engine.close()
    assert steps[1] < steps[0] or cached == 1


def test_sampled_text_has_the_targets_distribution(
    distribution_engine: Engine, distribution_model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lossless.assert_targets_distribution(distribution_engine, distribution_model[1], monkeypatch, SamplingOptions(1.0))


def test_acceptance_rule_without_residual_is_detected(
    distribution_engine: Engine, distribution_model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lossless.assert_wrong_rule_is_seen(distribution_engine, distribution_model[1], monkeypatch)
