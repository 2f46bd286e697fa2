# SPDX-License-Identifier: Apache-2.0
"""`trtspec profile` from a recipe to a recommendation written into it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from tests.conftest import Run
from trtspec.bench.profile import engine_profiler
from trtspec.bench.profile.candidates import ProfileCandidate
from trtspec.bench.profile.recommend import PAYS, CandidateMeasurements
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import recipes_dir

pytestmark = pytest.mark.integration

SMALL = ("--num-prompts", 4, "--max-tokens", 32, "--max-draft-len", 4)


def test_profile_ranks_two_drafts_and_writes_the_better_one(workplace: Path, trtspec: Run) -> None:
    """The quickstart's draft is trained on its target; with its embedding reversed it guesses randomly."""
    models = recipes_dir() / "models"
    shutil.copytree(models / "quickstart-draft", workplace / "worse")
    tensors = load_file(workplace / "worse" / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"model.embed_tokens.weight": embedding.flip(0)}, workplace / "worse" / "model.safetensors")
    mine = workplace / "mine.yaml"
    text = (recipes_dir() / "quickstart.yaml").read_text().replace("./models/quickstart-draft", "./worse")
    text = text.replace("./models/", f"{models}/").replace("./prompts/", f"{recipes_dir()}/prompts/")
    mine.write_text(text)
    better = str(models / "quickstart-draft")
    asked = ("--methods", "draft_target", "--drafts", better, "--write", "--json", "--set", "engine.max_batch_size=1")
    document = trtspec("profile", mine, *SMALL, *asked).document
    worse, best = document["methods"]
    assert worse["draft"] == "./worse"
    (measured,) = worse["best"]
    # on a busy machine its time may be measured as shorter
    assert worse["verdict"] == ("train" if measured["interval"][0] >= PAYS else "harmful")
    assert best["acceptance_rate"] > 0.6
    assert worse["acceptance_rate"] < 0.5
    assert document["recommendation"]["method"] in ("draft_target", "none")  # on a busy machine, no draft may pay
    if document["recommendation"]["method"] == "draft_target":
        section = yaml.safe_load(mine.read_text())["speculation"]
        assert (workplace / section["draft"]["model"]).resolve() == Path(better).resolve()
    assert trtspec("check", mine).code == 0


def test_profile_document_and_text_cover_each_method(recipe: Path, trtspec: Run) -> None:
    document = trtspec("profile", recipe, *SMALL, "--methods", "draft_target,ngram", "--json").document
    assert {each["method"] for each in document["methods"]} == {"draft_target", "ngram"}
    for each in document["methods"]:
        assert {pair["draft_len"] for pair in each["speedups"]} == {1, 2, 3, 4}
        assert {pair["batch"] for pair in each["best"]} == {pair["batch"] for pair in each["speedups"]}
        value, low, high = each["mean_accepted_len"]["token_weighted"]
        assert 1 <= low <= value <= high <= 5
        assert sum(kind["prompts"] for kind in each["by_kind"]) == document["prompts"]
        assert all(len(kind["by_position"]) == each["draft_len"] for kind in each["by_kind"])
    assert json.dumps(document["recommendation"]["speculation"])
    said = trtspec("profile", recipe, *SMALL, "--methods", "ngram").out
    assert "ngram" in said
    assert yaml.safe_load(said[said.index("speculation:") :])["speculation"]["method"] in ("ngram", "none")


def test_too_long_prompts_are_excluded_and_counted(recipe: Path, trtspec: Run, tmp_path: Path) -> None:
    mixed, long = tmp_path / "mixed.jsonl", tmp_path / "long.jsonl"
    lines = [json.dumps({"prompt": text}) for text in ("2026-11-20 12:00:01 INFO ", "one two " * 600)]
    mixed.write_text("\n".join(lines) + "\n")
    long.write_text(lines[1] + "\n")
    asked = (*SMALL, "--methods", "ngram", "--set", "engine.max_batch_size=1", "--prompts")
    document = trtspec("profile", recipe, *asked, mixed, "--json").document
    assert (document["prompts"], document["prompts_left_out"]) == (1, 1)
    refused = trtspec("profile", recipe, *asked, long)
    assert refused.code != 0
    assert "the prompt has" in refused.err or "max_tokens are" in refused.err


def test_write_to_a_shipped_recipe_is_rejected(workplace: Path, trtspec: Run) -> None:
    outcome = trtspec("profile", "quickstart", "--write")
    assert outcome.code == 1
    assert outcome.err.startswith("error: quickstart: no such file; shipped recipes cannot be edited")


def test_failed_candidate_is_reported_and_the_others_are_measured(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_profiler.measure

    def measure(candidate: ProfileCandidate, *rest: Any) -> CandidateMeasurements:
        if candidate.method == "draft_target":
            raise TrtspecError("it has no room")
        return real(candidate, *rest)

    monkeypatch.setattr(engine_profiler, "measure", measure)
    asked = (
        "profile",
        recipe,
        *SMALL,
        "--set",
        "engine.max_batch_size=1",
        "--json",
        "--drafts",
        "./nowhere",
        "--methods",
    )
    document = trtspec(*asked, "draft_target,ngram").document
    assert [each["method"] for each in document["methods"]] == ["ngram"]
    left_out = {each["method"]: each["why"] for each in document["left_out"]}
    assert left_out.pop("./nowhere")
    assert list(left_out.values()) == ["it has no room"]
    alone = trtspec(*asked, "draft_target")
    assert alone.code == 1
    assert "it has no room" in alone.out


def test_draft_that_does_not_fit_max_seq_len_is_an_error(recipe: Path, trtspec: Run) -> None:
    """A draft of 64 tokens does not fit into a sequence of 64 tokens."""
    sizes = ("--set", "engine.max_seq_len=64", "--set", "engine.max_input_len=32", "--set", "engine.max_batch_size=1")
    outcome = trtspec("profile", recipe, *SMALL[:-1], 64, *sizes, "--methods", "ngram")
    assert outcome.code == 1
    assert "ngram: engine.max_seq_len leaves no room" in outcome.err


def test_unavailable_or_unknown_method_is_an_error(recipe: Path, trtspec: Run) -> None:
    outcome = trtspec("profile", recipe, *SMALL, "--methods", "medusa")
    assert outcome.code == 1
    assert "medusa" in outcome.err
    outcome = trtspec("profile", recipe, *SMALL, "--methods", "nonsense")
    assert outcome.code == 1
    assert "nonsense" in outcome.err
