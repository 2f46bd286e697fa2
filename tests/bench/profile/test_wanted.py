# SPDX-License-Identifier: Apache-2.0
"""The candidates to try and their draft lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.backends.base import in_process_backend
from trtspec.bench.profile.candidates import CandidateSpec, ProfileRequest, SearchLimits, find_candidates
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import recipes_dir
from trtspec.recipe.load import load_recipe

TREE = {"top_k": 4, "nodes": 12}


@pytest.mark.parametrize(
    ("spec", "most", "draft_len"),
    [
        (CandidateSpec("eagle3", None, {}, 4), 10, 10),
        (CandidateSpec("eagle3", None, TREE, 4), 10, 4),
        (CandidateSpec("eagle3", None, TREE, 4), 3, 3),
        (CandidateSpec("eagle3", None, TREE), 10, 4),
        (CandidateSpec("redrafter", None, {}, 7), 10, 7),
        (CandidateSpec("redrafter", None, {"beams": 1}, 7), 10, 10),
        (CandidateSpec("eagle3", None, {}, 4), 64, 16),
    ],
)
def test_draft_len_is_the_limit_for_a_chain_and_the_depth_for_a_tree(
    spec: CandidateSpec, most: int, draft_len: int
) -> None:
    assert spec.section(most)["draft_len"] == draft_len


def test_method_without_draft_len_has_none_in_its_section() -> None:
    assert CandidateSpec("medusa", None, {}).section(10) == {"method": "medusa", "options": {}}


def test_missing_candidates_are_excluded_with_reasons_and_unknown_methods_fail(workplace: Path) -> None:
    """A head without a draft and a missing draft are skipped with a reason; an unknown method is an error."""
    loaded = load_recipe(Path("quickstart-ngram"), [])

    def found(methods: list[str] | None, drafts: list[str]) -> tuple[list[str], dict[str, str]]:
        asked = ProfileRequest(Path("quickstart-ngram"), [], None, drafts, methods, SearchLimits(1, 8, 4, 1, 0))
        each, left_out = find_candidates(loaded, asked, in_process_backend()[1])
        return [one.name for one in each], left_out

    names, left_out = found(["eagle3", "ngram"], ["./nowhere", str(recipes_dir() / "models" / "quickstart-draft")])
    assert names[0] == "ngram"
    assert names[1].startswith("draft_target")
    assert left_out["eagle3"] == "it requires a head, which the recipe lacks; give one with --drafts"
    assert left_out["./nowhere"]
    with pytest.raises(TrtspecError, match="ngrams"):
        found(["ngram", "ngrams"], [])


@pytest.mark.integration
def test_recipe_with_a_tree_is_profiled_at_its_draft_len(workplace: object, trtspec: Run) -> None:
    asked = (
        "--num-prompts",
        2,
        "--max-tokens",
        16,
        "--methods",
        "redrafter",
        "--set",
        "engine.max_batch_size=1",
        "--json",
    )
    document = trtspec("profile", "quickstart-redrafter", *asked).document
    (found,) = document["methods"]
    assert (found["draft_len"], {each["draft_len"] for each in found["speedups"]}) == (4, {4})
    assert document["recommendation"]["draft_len"] in (0, 4)  # on a busy machine it may not pay
