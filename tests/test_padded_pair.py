# SPDX-License-Identifier: Apache-2.0
"""A pair of one tokenizer whose checkpoints were published with different numbers of unused vocabulary rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama, make_tokenizer
from trtspec.triton.config import load_config

SPARE = 8


@pytest.fixture
def recipe(recipe: Path) -> Path:
    target = recipe.parent / "target"
    make_llama(target, vocab_size=PAIR_VOCAB + SPARE, **TARGET_SHAPE)
    make_tokenizer(target)
    return recipe


def test_the_plan_says_that_the_draft_is_padded(trtspec: Run, recipe: Path) -> None:
    assert trtspec("check", recipe, "--json").document["problems"] == []
    rows = f"{PAIR_VOCAB} to the target's {PAIR_VOCAB + SPARE} rows"
    said = f"the draft's embedding and head are padded with zeros from {rows}"
    planned = trtspec("plan", recipe, "--json")
    assert planned.document["notes"] == [said]
    assert planned.err == ""
    assert said in trtspec("plan", recipe).out


@pytest.mark.integration
def test_the_padded_draft_drafts_and_the_text_is_the_targets(trtspec: Run, recipe: Path) -> None:
    out = recipe.parent / "artifact"
    built = trtspec("build", recipe, "--out", out, "--json")
    assert built.code == 0, built.err
    config = json.loads((out / "checkpoints/draft/config.json").read_text())
    assert config["vocab_size"] == PAIR_VOCAB + SPARE
    biased = load_config(out / "model_repository" / "ensemble" / "config.pbtxt").parameters
    assert biased["vocab_size"].string_value == str(PAIR_VOCAB + SPARE), "a bias is as long as the logits"
    verified = trtspec("verify", out, "--max-tokens", 16, "--json")
    assert verified.code == 0, verified.err
    generated = trtspec("generate", out, "-p", "the rest", "--max-tokens", 12, "--json")
    assert generated.document["drafted"] > 0
