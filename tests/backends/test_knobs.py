# SPDX-License-Identifier: Apache-2.0
"""Keys of `speculation` that a backend does not support are rejected, not ignored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.manifests import resolved
from tests.conftest import Run
from trtspec.backends.base import backends, find_backend
from trtspec.backends.common.checks import check_features
from trtspec.methods.base import find_method
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.recipe.schema import KNOBS, ScheduledLen, Speculation

VALUES = {
    "schedule": [{"max_batch": 4, "draft_len": 5}],
    "confidence": 0.5,
    "verify": "block",
    "acceptance_rate_threshold": 0.4,
    "acceptance_window": 50,
}
ALL = replace(find_backend("embedded"), knobs=frozenset(KNOBS))


def findings(method: str, backend: Any = ALL, **keys: Any) -> list[tuple[str, str]]:
    speculation = Speculation.model_validate({"method": method, **keys})
    chosen = find_method(method)
    options = chosen.options.model_validate(speculation.options)
    return [(each.path, each.message) for each in check_features(speculation, chosen, options, backend)]


def test_every_knob_is_in_the_schema() -> None:
    assert set(VALUES) == set(KNOBS)
    assert all(each.knobs <= set(KNOBS) for each in backends().values())
    assert Speculation().knobs == []


@pytest.mark.parametrize("name", backends())
def test_backend_rejects_unsupported_knobs(name: str) -> None:
    backend = find_backend(name)
    refused = {path for path, _ in findings("draft_target", backend, **VALUES)}
    assert refused == {f"speculation.{key}" for key in KNOBS if key not in backend.knobs}


def test_rejected_knob_is_reported_with_position_and_hint(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text().replace("speculation:\n", "speculation:\n  acceptance_rate_threshold: 0.4\n"))
    ended = trtspec("check", "--json", recipe, "--set", "engine.backend=embedded")
    (problem,) = ended.document["problems"]
    assert (ended.code, problem["path"]) == (1, "speculation.acceptance_rate_threshold")
    assert (problem["code"], problem["column"]) == ("not-supported", 30)
    assert "remove acceptance_rate_threshold" in problem["hint"]


def test_verify_without_drafting_is_reported_as_ignored() -> None:
    assert findings("none", verify="block") == [
        ("speculation.verify", "none drafts nothing, so verify is ignored"),
    ]


def test_schedule_must_begin_with_the_draft_len() -> None:
    assert not findings("draft_target", schedule=VALUES["schedule"])
    assert findings("draft_target", draft_len=3, schedule=VALUES["schedule"]) == [
        ("speculation.schedule", "it begins with 5 draft tokens, but speculation.draft_len is 3")
    ]
    assert findings("medusa", schedule=VALUES["schedule"])[0][1].startswith("medusa does not use draft_len")


def test_block_verification_requires_a_chain() -> None:
    assert not findings("eagle3", verify="block")
    tree = {"top_k": 4, "nodes": 8}
    assert findings("eagle3", verify="block", options=tree)[0][1].startswith("block verification supports chains only")


def test_confidence_requires_a_chain_with_draft_probabilities() -> None:
    assert not findings("dflash", confidence=0.5)
    tree = {"top_k": 4, "nodes": 8}
    assert findings("eagle3", confidence=0.5, options=tree)[0][1].startswith(
        "a length by confidence supports chains only"
    )
    assert findings("ngram", confidence=0.5) == [
        ("speculation.confidence", "ngram does not provide probabilities to estimate the confidence of a draft")
    ]


def test_resolved_recipe_stores_knobs_and_old_recipes_get_defaults() -> None:
    recipe = resolved(speculation={"method": "ngram", **VALUES})
    said = recipe.speculation
    assert said.schedule == [ScheduledLen(max_batch=4, draft_len=5)]
    assert (said.verify, said.acceptance_rate_threshold, said.acceptance_window) == ("block", 0.4, 50)
    assert said.confidence == 0.5
    assert ResolvedRecipe.from_dict(recipe.as_dict()) == recipe
    old = recipe.as_dict()
    for key in KNOBS:
        del old["speculation"][key]
    assert ResolvedRecipe.from_dict(old).speculation.verify == "standard"
