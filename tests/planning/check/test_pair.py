# SPDX-License-Identifier: Apache-2.0
"""Incompatible pairs of target and draft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import pytest

from tests._support.tiny import DRAFT_SHAPE, MERGES, PAIR_VOCAB, make_llama, make_tokenizer
from tests.conftest import Run
from tests.planning.check.finding import DRAFT, TARGET, rewrite, the_problem
from trtspec.planning.check.drafting import GOOD_RATE, LEAST_SPEEDUP, good_speedup
from trtspec.planning.prediction.speedup import expected_speedup


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


@pytest.mark.parametrize(
    ("passes", "draft_len", "ratio", "pays"),
    [
        ("each", 4, 8030 / 1236, True),  # Llama 3.1 8B and 3.2 1B
        ("each", 4, 32762 / 4022, True),  # Qwen3 32B and 4B
        ("each", 10, 70554 / 1236, True),  # NVIDIA's pair with 3.55x (docs/planning.md)
        ("each", 4, 3.0, True),
        ("each", 4, 2.0, False),
        ("each", 4, 70554 / 8030 / 4, False),  # on 4 GPUs, with the draft on one (tensorrtllm_backend#498)
        ("each", 10, 2.0, False),  # at 0.8, the later tokens of a long draft are rarely accepted
        ("one", 10, 2.0, True),  # drafted in one pass
    ],
)
def test_pair_is_judged_by_the_speedup_at_a_good_acceptance_rate(
    passes: Literal["each", "one"], draft_len: int, ratio: float, pays: bool
) -> None:
    cost = 1 / ratio
    assert (good_speedup(passes, draft_len, cost) >= LEAST_SPEEDUP) is pays
    if passes == "each":
        assert good_speedup(passes, draft_len, cost) == expected_speedup(GOOD_RATE, draft_len, cost)


@pytest.mark.slow
def test_pair_with_an_unusual_size_ratio_is_built_with_a_warning(trtspec: Run, recipe: Path) -> None:
    shutil.rmtree(recipe.parent / "draft")
    shutil.copytree(recipe.parent / "target", recipe.parent / "draft")
    checked = trtspec("check", recipe, "--json")
    assert checked.code == 0
    (problem,) = checked.document["problems"]
    assert (problem["severity"], problem["code"]) == ("warning", "size-ratio")
    assert problem["message"] == (
        "the target is 1.0 times the draft (0.2 M and 0.2 M parameters): even if 80% of the drafted tokens are "
        "accepted, 3 per step make it at most 0.74 times as fast"
    )
    assert "warning: the target is 1.0 times the draft" in trtspec("build", recipe).err


def test_exchanged_pair_is_named_in_the_warning(trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "target").rename(recipe.parent / "other")
    (recipe.parent / "draft").rename(recipe.parent / "target")
    (recipe.parent / "other").rename(recipe.parent / "draft")
    (problem,) = trtspec("check", recipe, "--json").document["problems"]
    assert (problem["severity"], problem["code"]) == ("warning", "size-ratio")
    assert problem["message"].startswith("the draft is larger than the target (")
    assert problem["hint"] == "exchange target and draft"
