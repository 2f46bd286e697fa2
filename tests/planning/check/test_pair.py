# SPDX-License-Identifier: Apache-2.0
"""Incompatible pairs of target and draft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests._support.tiny import DRAFT_SHAPE, MERGES, PAIR_VOCAB, make_llama, make_tokenizer
from tests.conftest import Run
from tests.planning.check.finding import DRAFT, TARGET, rewrite, the_problem


def draft_in_parallel(recipe: Path, pard_token: int = 3) -> None:
    """Make the draft parallel; parallel drafts must share the target's vocabulary."""
    path = recipe.parent / "draft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pard_token": pard_token}))
    recipe.write_text(recipe.read_text().replace("method: draft_target", "method: pard"))


def test_vocabularies_of_different_sizes_are_rejected(trtspec: Run, recipe: Path) -> None:
    make_llama(recipe.parent / "draft", vocab_size=PAIR_VOCAB + 8, **DRAFT_SHAPE)
    draft_in_parallel(recipe, PAIR_VOCAB + 2)  # a row that cannot be removed
    assert the_problem(trtspec, recipe, DRAFT) == (
        f"the draft has {PAIR_VOCAB + 8} vocabulary entries, the target {PAIR_VOCAB}",
        "a draft must share the target's vocabulary",
    )


def test_tokenizers_with_different_merges_are_rejected(trtspec: Run, recipe: Path) -> None:
    make_tokenizer(recipe.parent / "draft", merges=MERGES[2:] + MERGES[:2])
    draft_in_parallel(recipe)
    assert the_problem(trtspec, recipe, DRAFT) == (
        "draft and target have different tokenizers: equal vocabularies, but different tokens for the same text",
        "choose a draft of the target's family",
    )


def test_tokenizers_with_different_vocabularies_are_rejected(trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "draft" / "tokenizer.json"
    document = json.loads(path.read_text())
    numbers = document["model"]["vocab"]
    numbers["A"], numbers["B"] = numbers["B"], numbers["A"]
    path.write_text(json.dumps(document))
    draft_in_parallel(recipe)
    message, hint = the_problem(trtspec, recipe, DRAFT)
    assert message == (
        f"draft and target have different tokenizers: their vocabularies differ, e.g. at 'A' (id {numbers['B']})"
    )
    assert hint == "draft tokens would mean other texts; choose a draft of the target's family"


def test_equal_tokenizers_in_different_formats_are_accepted(trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "draft" / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]  # format of older versions
    path.write_text(json.dumps(document, separators=(",", ":")))
    assert trtspec("check", recipe).code == 0


@pytest.mark.parametrize("role", ["target", "draft"])
def test_missing_tokenizer_is_an_error(role: str, trtspec: Run, recipe: Path) -> None:
    (recipe.parent / role / "tokenizer.json").unlink()
    assert the_problem(trtspec, recipe, TARGET if role == "target" else DRAFT) == (
        f"{role}: no tokenizer.json",
        "save the tokenizer in the fast format with transformers",
    )


def test_invalid_tokenizer_is_an_error(trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "target" / "tokenizer.json").write_text('{"version": ')
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == "target/tokenizer.json: not a tokenizer: not a JSON object"


def test_draft_with_fewer_positions_is_an_error(trtspec: Run, recipe: Path) -> None:
    rewrite(recipe.parent / "draft" / "config.json", max_position_embeddings=100)
    assert the_problem(trtspec, recipe, DRAFT) == (
        "the draft has 100 positions, fewer than engine.max_seq_len",
        "set engine.max_seq_len to at most 100",
    )


@pytest.mark.slow
def test_pair_with_an_unusual_size_ratio_is_built_with_a_warning(trtspec: Run, recipe: Path) -> None:
    shutil.rmtree(recipe.parent / "draft")
    shutil.copytree(recipe.parent / "target", recipe.parent / "draft")
    checked = trtspec("check", recipe, "--json")
    assert checked.code == 0
    (problem,) = checked.document["problems"]
    assert (problem["severity"], problem["code"]) == ("warning", "size-ratio")
    assert problem["message"].startswith("the target is 1.0 times the draft (0.2 M and 0.2 M parameters)")
    assert "warning: the target is 1.0 times the draft" in trtspec("build", recipe).err
