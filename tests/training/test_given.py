# SPDX-License-Identifier: Apache-2.0
"""Responses that come with prompts are used if they are on-policy, and otherwise rejected with a diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests._support.tiny import convert, make_llama
from tests.training.made import VOCAB, random_texts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.training.batches import Teacher, diagnose, find_off_policy
from trtspec.training.texts import TrainingText

COUNT, TOKENS = 40, 24


class Asked:
    """A target and its responses to some prompts."""

    def __init__(self, root: Path) -> None:
        self.root = convert(make_llama(root / "hf", scale=0.3), root / "target")
        self.prompts = random_texts(COUNT)

    def answers(self, sampling: SamplingOptions, root: Path | None = None) -> list[TrainingText]:
        engine = Engine(root or self.root, None, EngineSettings(max_batch_size=8, max_seq_len=64))
        requests = [
            EngineRequest(text.prompt, TOKENS, replace(sampling, seed=number))
            for number, text in enumerate(self.prompts)
        ]
        found = engine.generate(requests)
        engine.close()
        return [replace(text, answer=result.ids) for text, result in zip(self.prompts, found, strict=True)]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def greedy(asked: Asked) -> list[TrainingText]:
    return asked.answers(SamplingOptions())


def complaint(asked: Asked, given: list[TrainingText], own: list[TrainingText]) -> str | None:
    """Return the diagnosis of responses, or None if they are accepted."""
    foreign = find_off_policy(given, Teacher(asked.root, given))
    answers = {text.name: text.answer for text in own}
    return diagnose(foreign, [answers[each.text.name] for each in foreign], given) if foreign else None


def test_greedy_answers_are_accepted(asked: Asked, greedy: list[TrainingText]) -> None:
    assert complaint(asked, greedy, greedy) is None


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_answers_are_accepted(asked: Asked, greedy: list[TrainingText], temperature: float) -> None:
    assert complaint(asked, asked.answers(SamplingOptions(temperature)), greedy) is None


def test_shuffled_answers_are_reported(asked: Asked, greedy: list[TrainingText]) -> None:
    turned = [replace(text, answer=other.answer) for text, other in zip(greedy, greedy[1:] + greedy[:1], strict=True)]
    assert "shuffled" in (complaint(asked, turned, greedy) or "")


def test_labels_shifted_by_one_are_reported(asked: Asked, greedy: list[TrainingText]) -> None:
    early = [replace(text, answer=text.answer[1:]) for text in greedy]
    assert "shifted by one token" in (complaint(asked, early, greedy) or "")


def test_random_tokens_are_reported(asked: Asked, greedy: list[TrainingText]) -> None:
    draw = Random(0)
    noise = [replace(text, answer=tuple(draw.randrange(VOCAB) for _ in range(TOKENS))) for text in greedy]
    assert "random tokens" in (complaint(asked, noise, greedy) or "")


def test_answers_of_another_model_are_reported(asked: Asked, greedy: list[TrainingText], tmp_path: Path) -> None:
    other = convert(make_llama(tmp_path / "hf", seed=5, scale=0.3), tmp_path / "target")
    given = asked.answers(SamplingOptions(), other)
    said = complaint(asked, given, greedy) or ""
    assert "another model" in said or "random tokens" in said  # a random model's words are chance to another


def test_single_off_policy_answer_is_found_among_many(asked: Asked, greedy: list[TrainingText]) -> None:
    draw = Random(0)
    given = [*greedy[:-1], replace(greedy[-1], answer=tuple(draw.randrange(VOCAB) for _ in range(TOKENS)))]
    assert [each.text.name for each in find_off_policy(given, Teacher(asked.root, given))] == [greedy[-1].name]
