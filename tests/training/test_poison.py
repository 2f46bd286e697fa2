# SPDX-License-Identifier: Apache-2.0
"""Ten invalid training sets, each derived from a valid one, are rejected with the right reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests._support.tiny import convert
from tests.conftest import Run
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RECIPES = Path(__file__).parents[2] / "recipes"
TARGET, DRAFT = (RECIPES / "models" / f"quickstart-{role}" for role in ("target", "draft"))
PROMPTS = RECIPES / "prompts" / "quickstart.jsonl"  # kinds alternate, so the next prompt's answer is always wrong
COUNT, TOKENS = 48, 24
GREEDY = SamplingOptions()
Record = dict[str, str]


def prompts() -> list[str]:
    return [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()[:COUNT]]


@dataclass(frozen=True)
class Speaker:
    """A model and its responses to prompts."""

    engine: Engine

    def answers(self, asked: Sequence[str], sampling: SamplingOptions = GREEDY) -> list[str]:
        tokenizer = self.engine.tokenizer
        assert tokenizer is not None
        requests = [
            EngineRequest(tuple(tokenizer.encode(text)), TOKENS, sampling.at(number, "test"), end_ids=tokenizer.end_ids)
            for number, text in enumerate(asked)
        ]
        return [tokenizer.decode(list(result.ids)) for result in self.engine.generate(requests)]


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Speaker]:
    settings, root = EngineSettings(max_batch_size=16, max_seq_len=256), tmp_path_factory.mktemp("speakers")
    return {
        source.name: Speaker(Engine(convert(source, root / source.name), None, settings, source))
        for source in (TARGET, DRAFT)
    }


@pytest.fixture(scope="module")
def own(speakers: dict[str, Speaker]) -> list[Record]:
    """Return prompts with the target's responses."""
    asked = prompts()
    return [
        {"id": f"p{number}", "prompt": prompt, "response": answer}
        for number, (prompt, answer) in enumerate(zip(asked, speakers[TARGET.name].answers(asked), strict=True))
    ]


def answered(records: list[Record], answers: Sequence[str]) -> list[Record]:
    return [record | {"response": answer} for record, answer in zip(records, answers, strict=True)]


def hot(records: list[Record], speakers: dict[str, Speaker]) -> list[str]:
    found = speakers[TARGET.name].answers([each["prompt"] for each in records], SamplingOptions(3.0, seed=1))
    return [answer.strip() or each["response"] for answer, each in zip(found, records, strict=True)]  # avoid empty ones


def of_another_template(records: list[Record], speakers: dict[str, Speaker]) -> list[str]:
    wrapped = [f"Q: {each['prompt']} A:" for each in records]
    return speakers[TARGET.name].answers(wrapped)


Poison = Callable[[list[Record], dict[str, Speaker]], list[Record]]
# how the set is derived, and the expected message
POISONS: dict[str, tuple[Poison, str]] = {
    "shuffled answers": (
        lambda records, _: answered(records, [each["response"] for each in records[1:] + records[:1]]),
        "answers are not the target's own",
    ),
    "answers less their first character": (
        lambda records, _: answered(records, [each["response"][1:] for each in records]),
        "answers are not the target's own",
    ),
    "answers behind a character of the prompt": (
        lambda records, _: answered(records, [each["prompt"][-1] + each["response"] for each in records]),
        "answers are not the target's own",
    ),
    "another model's answers": (
        lambda records, speakers: answered(
            records, speakers[DRAFT.name].answers([each["prompt"] for each in records], SamplingOptions(1.5, seed=2))
        ),
        "answers are not the target's own",
    ),
    "answers sampled too hot": (
        lambda records, speakers: answered(records, hot(records, speakers)),
        "answers are not the target's own",
    ),
    "answers to another template": (
        lambda records, speakers: answered(records, of_another_template(records, speakers)),
        "answers are not the target's own",
    ),
    "random characters": (
        lambda records, _: answered(records, ["".join(Random(n).choices("qzjxkvwy", k=40)) for n in range(COUNT)]),
        "answers are not the target's own",
    ),
    "empty answers": (
        lambda records, _: answered(records, [" "] * COUNT),
        "48 answers are empty, as that to prompt p0",
    ),
    "prompts in another model's template": (
        lambda records, _: [
            {"id": each["id"], "prompt": f"<|im_start|>user\n{each['prompt']}<|im_end|>\n"} for each in records
        ],
        "prompts use the chat template of another model: <|im_start|>",
    ),
    "one prompt many times": (
        lambda records, _: [records[number % 3] | {"id": f"q{number}"} for number in range(COUNT)],
        "48 prompts of 3 documents",
    ),
}


def train(trtspec: Run, root: Path, records: list[Record], *more: str) -> tuple[int, str]:
    path = root / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    ended = trtspec("train", "quickstart", "--prompts", path, "--max-tokens", TOKENS, "--steps", 1, *more)
    return ended.code, ended.err


def test_number_of_poisons_is_ten() -> None:
    assert len(POISONS) == 10


@pytest.mark.parametrize("poison", POISONS)
def test_poisoned_prompt_set_is_rejected(
    poison: str, own: list[Record], speakers: dict[str, Speaker], workplace: Path, trtspec: Run
) -> None:
    make, words = POISONS[poison]
    code, said = train(trtspec, workplace, make(own, speakers))
    assert code == 1, said
    assert words in said
    assert not Path("drafts").exists()


def test_unpoisoned_prompt_set_is_accepted(own: list[Record], workplace: Path, trtspec: Run) -> None:
    code, said = train(trtspec, workplace, own)
    assert code == 112, said  # a step finds unsuitable answers
