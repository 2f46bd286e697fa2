# SPDX-License-Identifier: Apache-2.0
"""Checks of the sublayers that a target skips while drafting, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run

RECIPE = """\
schema: trtspec.recipe/1
name: tiny
target: {{model: ./target}}
speculation:
  method: swift
  options: {options}
engine: {{max_batch_size: 2, max_input_len: 128, max_seq_len: 256}}
gates: {{prompts: ./prompts.jsonl}}
"""


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ("{}", "skip", "no sublayer is skipped: drafting would cost as much as the target"),
        ("{skip: {attention: [1, 4, -1]}}", "skip.attention", "the target's layers are 0..3, not -1, 4"),
        ("{skip: {mlp: [2, 1, 2, 1]}}", "skip.mlp", "listed more than once: 1, 2"),
        (
            "{skip: {attention: [0, 1, 2, 3], mlp: [0, 1, 2, 3]}}",
            "skip",
            "all sublayers are skipped: no layer remains to draft with",
        ),
        ("{skip: {attention: [1.5]}}", "skip.attention.0", "expected an integer, got the number 1.5"),
        ("{skip: {atention: [1]}}", "skip.atention", "swift has no option 'skip.atention'"),
        ("{skip: {mlp: [1]}, stop_below: 1.0}", "stop_below", "less than 1"),
    ],
)
def test_invalid_skip_options_are_reported_by_check(
    options: str, path: str, message: str, recipe: Path, trtspec: Run
) -> None:
    recipe.write_text(RECIPE.format(options=options))
    found = trtspec("check", recipe, "--json")
    (problem,) = [each for each in found.document["problems"] if each["severity"] == "error"]
    assert found.code == 1
    assert problem["path"] == f"speculation.options.{path}"
    assert message in problem["message"]


@pytest.mark.parametrize(("draft_len", "code"), [(1, 0), (25, 0), (26, 1)])
def test_draft_len_beyond_the_limit_is_rejected(draft_len: int, code: int, recipe: Path, trtspec: Run) -> None:
    recipe.write_text(RECIPE.format(options="{skip: {mlp: [1]}}"))
    found = trtspec("check", recipe, "--set", f"speculation.draft_len={draft_len}")
    assert found.code == code
    assert ("swift takes 1..25 draft tokens" in found.out) == bool(code)


@pytest.mark.integration
def test_swift_recipe_builds_and_is_lossless(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(RECIPE.format(options="{skip: {attention: [1], mlp: [2]}, stop_below: 0.01}"))
    assert trtspec("build", recipe).code == 0
    verified: dict[str, Any] = trtspec("verify", "build/tiny", "--max-tokens", 8, "--json").document
    assert verified["ok"], verified
    said = trtspec("generate", "build/tiny", "-p", "the rest", "--max-tokens", 16, "--json").document
    assert said["drafted"] > 0
