# SPDX-License-Identifier: Apache-2.0
"""vLLM: a draft model with another vocabulary, from the recipe to model.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama, make_tokenizer
from tests.conftest import Run

PATH = "speculation.draft.model"


@pytest.fixture
def recipe(recipe: Path) -> Path:
    """The tiny pair on vLLM, with a target that has more rows than its draft."""
    target = recipe.parent / "target"
    make_llama(target, vocab_size=PAIR_VOCAB + 8, **TARGET_SHAPE)
    make_tokenizer(target)
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: vllm\n  gpu: h100\n"))
    return recipe


def problems(trtspec: Run, recipe: Path, version: str) -> list[tuple[str, str, str]]:
    document = trtspec("check", recipe, "--set", f"engine.version={version}", "--json").document
    return [(each["severity"], each["path"], each["code"]) for each in document["problems"] if each["path"] == PATH]


@pytest.mark.slow
def test_other_vocabulary_is_an_error_before_0_25_and_a_warning_later(recipe: Path, trtspec: Run) -> None:
    assert ("error", PATH, "vocabulary") in problems(trtspec, recipe, "0.24.0")
    assert problems(trtspec, recipe, "0.25.0") == [("warning", PATH, "vocabulary")]


@pytest.mark.slow
def test_heterogeneous_vocabulary_is_set_only_if_the_sizes_differ(recipe: Path, trtspec: Run) -> None:
    speculation = trtspec("plan", recipe, "--json").document["model_json"]["speculative_config"]
    assert speculation["use_heterogeneous_vocab"] is True
    make_llama(recipe.parent / "target", vocab_size=PAIR_VOCAB, **TARGET_SHAPE)
    assert problems(trtspec, recipe, "0.25.0") == []
    speculation = trtspec("plan", recipe, "--json").document["model_json"]["speculative_config"]
    assert "use_heterogeneous_vocab" not in speculation
