# SPDX-License-Identifier: Apache-2.0
"""Draft lengths by batch size: the text stays the target's, and large batches draft less or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, greedy, make_llama, make_model, reference_model
from tests.conftest import Run
from tests.engine.lossless import DISTRIBUTION_SHAPE, assert_targets_distribution, random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

SCHEDULE = ((1, 4), (2, 2), (3, 0))


def make_engine(target: Path, draft: Path | None, method: str, **settings: Any) -> Engine:
    chosen = {"max_seq_len": 128, "max_batch_size": 4, "device": "cpu", "draft_len": 4} | settings
    return Engine(target, draft, EngineSettings(method=method, **chosen))


def test_schedule_selects_the_draft_length_by_batch_size() -> None:
    settings = EngineSettings("ngram", 4, schedule=SCHEDULE)
    assert [settings.scheduled(rows, 4) for rows in range(1, 6)] == [4, 2, 0, 0, 0]
    assert EngineSettings("ngram", 4).scheduled(9, 4) == 4
    again = EngineSettings.from_json(settings.as_json())
    assert [again.scheduled(rows, 4) for rows in (1, 2, 3)] == [4, 2, 0]
    assert "schedule" not in EngineSettings("ngram", 4).as_json()


def test_batches_draft_by_their_size_with_the_same_text(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    target = convert(source, tmp_path / "target")
    engine = make_engine(target, target, "draft_target", schedule=SCHEDULE)  # the target drafts: all is accepted
    prompts, model = random_prompts(4), reference_model(source)
    texts = [greedy(model, list(prompt), 20) for prompt in prompts]

    def drafted(rows: int) -> list[float]:
        results = engine.generate([EngineRequest(prompt, 20) for prompt in prompts[:rows]])
        assert [list(result.ids) for result in results] == texts[:rows]
        return [result.stats.drafted / result.stats.steps for result in results]

    alone, two, four = drafted(1), drafted(2), drafted(4)
    engine.close()
    assert alone[0] > 3  # 4 a step except at the end
    assert max(two) < 2.5
    assert max(four) == 0  # all end at once


def test_remaining_row_drafts_after_the_others_end(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    target = convert(source, tmp_path / "target")
    engine = make_engine(target, target, "draft_target", schedule=SCHEDULE)
    short, long = engine.generate([EngineRequest((3, 4), 6), EngineRequest((5, 6), 6), EngineRequest((7, 8), 40)])[1:]
    engine.close()
    assert short.stats.drafted == 0
    assert long.stats.drafted > 20
    assert list(long.ids) == greedy(reference_model(source), [7, 8], 40)


def test_sampled_text_has_the_targets_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_model(tmp_path / "hf", **DISTRIBUTION_SHAPE)
    engine = make_engine(
        convert(source, tmp_path / "target"), None, "ngram", options={"min_match": 1}, schedule=((1, 2), (2, 0))
    )
    assert_targets_distribution(engine, reference_model(source), monkeypatch, SamplingOptions(1.0))
    engine.close()


def test_recipe_schedule_is_written_to_the_engine_configuration(recipe: Path, trtspec: Run) -> None:
    text, schedule = recipe.read_text(), "  schedule: [{max_batch: 2, draft_len: 3}, {max_batch: 8, draft_len: 1}]\n"
    recipe.write_text(text.replace("speculation:\n", f"speculation:\n{schedule}"))
    assert trtspec("build", recipe).code == 0
    model = recipe.parent / "build" / "tiny" / "model_repository" / "tensorrt_llm" / "config.pbtxt"
    assert '\\"schedule\\": [[2, 3], [8, 1]]' in model.read_text()
