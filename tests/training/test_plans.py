# SPDX-License-Identifier: Apache-2.0
"""Responses are regenerated only if their inputs change, not for another draft; and the cost of a draft's step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests._support.tiny import make_llama, make_tokenizer
from tests.training.made import SETTINGS
from tests.training.test_blanks import METHODS, make
from tests.training.test_train import prompts_file
from trtspec.cli.progress import build_bars
from trtspec.planning.prediction.predict import step_cost
from trtspec.training.plan import TrainRequest, answer_step, load_requested_recipe, plan_recipe

VOCAB = 262
TREE = {"choices": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}
# speculation settings in addition to method and draft
SECTIONS: dict[str, dict[str, Any]] = {
    "eagle": {"options": TREE},
    "medusa": {"options": TREE},
    "draft_target": {
        "draft_len": 4,
        "confidence": 0.3,
        "verify": "block",
        "schedule": [{"max_batch": 2, "draft_len": 4}],
    },
}
CHANGES: dict[str, Callable[[TrainRequest], TrainRequest]] = {
    "tokens of an answer": lambda asked: replace(asked, max_tokens=9),
    "sampled answers": lambda asked: replace(asked, sampled=1),
    "seed": lambda asked: replace(asked, settings=replace(SETTINGS, seed=1)),
    "prompts": lambda asked: replace(asked, prompts=prompts_file(Path("others.jsonl"), 41)),
    "prompts to keep": lambda asked: replace(asked, keep=prompts_file(Path("kept.jsonl"), 20, seed=2)),
    "target": lambda asked: replace(asked, recipe=recipe_of(target_of(Path("other"), seed=1))),
    "dtype": lambda asked: replace(asked, overrides=["target.dtype=float16"]),
    "batch": lambda asked: replace(asked, overrides=["engine.max_batch_size=4"]),
}  # fmt: skip


def target_of(root: Path, seed: int = 0) -> Path:
    make_llama(root, seed, scale=0.3, vocab_size=VOCAB)
    make_tokenizer(root)
    return root


def recipe_of(target: Path, speculation: dict[str, Any] | None = None) -> Path:
    document = {
        "schema": "trtspec.recipe/1",
        "name": "tiny",
        "target": {"model": f"./{target}"},
        "engine": {"max_batch_size": 8, "max_input_len": 64, "max_seq_len": 128},
    }
    path = Path(f"{target}.yaml")
    path.write_text(json.dumps(document | ({"speculation": speculation} if speculation else {})))
    return path


@pytest.fixture
def asked(workplace: Path) -> TrainRequest:
    return TrainRequest(
        recipe_of(target_of(Path("target"))),
        [],
        prompts_file(Path("prompts.jsonl"), 40),
        None,
        None,
        None,
        24,
        0,
        SETTINGS,
    )


def recipe_with(method: str) -> Path:
    """Return a recipe with an untrained draft of a method."""
    draft = make(method, Path("draft"), Path("target"))
    make_tokenizer(draft)
    section = SECTIONS.get(method, {"draft_len": 4}) | {"method": method, "draft": {"model": f"./{draft}"}}
    return recipe_of(Path("target"), section)


def key_of(asked: TrainRequest) -> str:
    return answer_step(asked, plan_recipe(load_requested_recipe(asked), build_bars)).key


@pytest.mark.parametrize("method", METHODS)
def test_answer_key_does_not_depend_on_the_method(method: str, asked: TrainRequest) -> None:
    alone = key_of(asked)
    recipe_with(method)
    assert key_of(asked) == alone


def test_answer_key_does_not_depend_on_the_queue_size(asked: TrainRequest) -> None:
    assert key_of(replace(asked, overrides=["serving.max_queue_size=3"])) == key_of(asked)


@pytest.mark.parametrize("what", CHANGES)
def test_answer_key_depends_on_inputs_that_change_answers(what: str, asked: TrainRequest) -> None:
    assert key_of(CHANGES[what](asked)) != key_of(asked)


def read_bytes(root: Path) -> int:
    """Return the bytes of a checkpoint's matrices and vectors, except those that are only looked up."""
    tensors = load_file(next(root.glob("*.safetensors")))
    looked_up = ("embed_tokens", "markov_w1")
    floats = [each for name, each in tensors.items() if not any(word in name for word in looked_up)]
    return sum(each.nbytes for each in floats if each.is_floating_point())


@pytest.mark.parametrize("method", METHODS)
def test_step_cost_counts_the_draft_passes(method: str, asked: TrainRequest) -> None:
    """Every pass reads the whole draft, and the target's LM head if the draft lacks one; four tokens are drafted."""
    context = plan_recipe(load_requested_recipe(replace(asked, recipe=recipe_with(method))), build_bars).context
    draft, target = read_bytes(Path("draft")), read_bytes(Path("target"))
    if method in ("dflash", "dspark", "eagle"):
        draft += load_file("target/model.safetensors")["lm_head.weight"].nbytes
    passes = 4 if method in ("draft_target", "eagle", "eagle3", "redrafter") else 1
    assert step_cost(context) == pytest.approx(1 + passes * draft / target)
