# SPDX-License-Identifier: Apache-2.0
"""Recipes that do not meet the requirements of their method."""

from __future__ import annotations

import json
from pathlib import Path

from tests._support.gemma4 import ASSISTANT
from tests.conftest import Run
from tests.planning.check.finding import replace, the_problem


def test_method_without_its_draft_is_an_error(trtspec: Run, recipe: Path) -> None:
    replace(recipe, "  draft:\n    model: ./draft\n", "")
    assert the_problem(trtspec, recipe, (6, 3, "speculation")) == (
        "draft_target requires a model as draft",
        "set speculation.draft; trtspec train creates the drafts listed in docs/train.md",
    )


def test_unused_draft_is_an_error(trtspec: Run, recipe: Path) -> None:
    message, _ = the_problem(trtspec, recipe, (9, 5, "speculation.draft"), "--set", "speculation.method=none")
    assert message == "method none does not use a draft"


def test_draft_that_another_method_uses_is_an_error_with_its_name(trtspec: Run, recipe: Path) -> None:
    """A Gemma 4 assistant is configured as mtp in vLLM and TensorRT-LLM."""
    given = ("--set", "speculation.method=mtp", "--set", "engine.backend=vllm")
    plain = the_problem(trtspec, recipe, (9, 5, "speculation.draft"), *given)
    assert plain == ("mtp does not use a draft", "remove draft")
    path = recipe.parent / "draft" / "config.json"
    path.write_text(json.dumps(ASSISTANT))
    assert (
        the_problem(trtspec, recipe, (9, 5, "speculation.draft"), *given)[1]
        == "use method: gemma4_mtp, or remove draft"
    )


def test_options_of_another_engine_are_a_warning(trtspec: Run, recipe: Path) -> None:
    checked = trtspec("check", recipe, "--set", "engine.extra.gemm_plugin=auto")
    assert checked.code == 0
    assert checked.out.startswith("--set engine.extra.gemm_plugin=auto  engine.extra.gemm_plugin\n  warning: an option")
