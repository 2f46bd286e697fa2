# SPDX-License-Identifier: Apache-2.0
"""Counts derived from known texts equal the engine's counts for every draft length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.bench.artifact import DRAFT, TARGET, OpenArtifact, engine_settings, open_artifact
from trtspec.bench.profile.acceptance import StepCounts, count_steps
from trtspec.core.paths import recipes_dir
from trtspec.engine.measurement import ReplayedDraft, replay
from trtspec.engine.speculator import Speculator

pytestmark = pytest.mark.integration

PROMPTS = ("def parse(", '{"id": 7, "name": "', "2026-01-02 10:00:00 INFO ", "for i in range(")
TOKENS = 40
METHODS = {
    "quickstart": (1, 2, 3, 5),
    "quickstart-ngram": (1, 3, 5),
    "quickstart-eagle3": (1, 3, 5),
    "quickstart-medusa": (None,),
    "quickstart-eagle": (None,),
    "quickstart-redrafter": (None,),
    "quickstart-dspark": (1, 4, 7),
}


@contextmanager
def built(name: str, workplace: Path, trtspec: Run) -> Iterator[OpenArtifact]:
    trtspec("build", recipes_dir() / f"{name}.yaml", "--out", workplace / name)
    with open_artifact(workplace / name) as artifact:
        yield artifact


def counted(artifact: OpenArtifact, draft_len: int | None) -> tuple[list[tuple[int, ...]], list[StepCounts]]:
    """Return the engine's responses and counts."""
    requests = [artifact.request(prompt, TOKENS, draft_len=draft_len) for prompt in PROMPTS]
    results = artifact.engine.generate(requests)
    told = [StepCounts(each.stats.steps, each.stats.drafted, each.stats.accepted) for each in results]
    return [each.ids for each in results], told


def replayed(artifact: OpenArtifact, said: list[tuple[int, ...]]) -> tuple[list[list[ReplayedDraft]], int]:
    root = artifact.root
    settings = replace(engine_settings(root, artifact.recipe), max_batch_size=len(said))
    speculator = Speculator.load(root / TARGET, root / DRAFT if (root / DRAFT).is_dir() else None, settings)
    prompts = [artifact.request(prompt, TOKENS).prompt_ids for prompt in PROMPTS]
    return replay(speculator, list(zip(prompts, said, strict=True)), 64), speculator.draft_shape.max_depth


@pytest.mark.parametrize("name", METHODS)
def test_replayed_counts_match_the_engine(name: str, workplace: Path, trtspec: Run) -> None:
    with built(name, workplace, trtspec) as artifact:
        said, _ = counted(artifact, 0)
        engines = {length: counted(artifact, length) for length in METHODS[name]}
        places, depth = replayed(artifact, said)
    assert [len(each) for each in places] == [len(text) - 1 for text in said]
    for length, (texts, told) in engines.items():
        assert texts == said
        found = [count_steps(each, length or depth) for each in places]
        assert [(each.steps, each.accepted) for each in found] == [(each.steps, each.accepted) for each in told]
        if length:
            assert [each.drafted for each in found] == [each.drafted for each in told]
        assert sum(each.accepted for each in found) > 0 or "ngram" in name
