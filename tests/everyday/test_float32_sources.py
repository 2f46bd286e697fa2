# SPDX-License-Identifier: Apache-2.0
"""Warn if `dtype: auto` would narrow a checkpoint to float16; accept an explicit dtype."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import DRAFT_SHAPE, PAIR_VOCAB, make_llama
from tests.conftest import Run


def warnings(trtspec: Run, recipe: Path, *arguments: str) -> list[tuple[str, str, str]]:
    document = trtspec("check", recipe, "--json", *arguments).document
    assert document["ok"] is True
    found: list[dict[str, Any]] = [problem for problem in document["problems"] if problem["code"] == "dtype"]
    assert {problem["severity"] for problem in found} <= {"warning"}
    return [(problem["path"], problem["message"], problem["hint"]) for problem in found]


NARROWED = (
    "speculation.draft.dtype",
    "its float32 weights are converted to float16, whose largest value is 65,504",
    "set dtype: bfloat16, which has the range of float32, or dtype: float16 to confirm",
)


def test_float32_narrowed_to_float16_warns_without_an_explicit_dtype(recipe: Path, trtspec: Run) -> None:
    make_llama(recipe.parent / "draft", dtype="float32", vocab_size=PAIR_VOCAB, **DRAFT_SHAPE)
    assert warnings(trtspec, recipe) == [NARROWED]
    for dtype in ("bfloat16", "float16"):
        assert warnings(trtspec, recipe, "--set", f"speculation.draft.dtype={dtype}") == []


@pytest.mark.parametrize(("declared", "narrowed"), [(None, True), ("bfloat16", False), ("float16", True)])
def test_dtype_warning_compares_the_stored_dtype_with_the_resulting_one(
    declared: str | None, narrowed: bool, recipe: Path, trtspec: Run
) -> None:
    config = recipe.parent / "draft" / "config.json"
    document = {key: value for key, value in json.loads(config.read_text()).items() if "dtype" not in key}
    config.write_text(json.dumps(document | ({"dtype": declared} if declared else {})))
    found = warnings(trtspec, recipe)
    assert [message.partition(" weights")[0] for _, message, _ in found] == ["its bfloat16"] * narrowed
