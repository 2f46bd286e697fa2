# SPDX-License-Identifier: Apache-2.0
"""`trtspec train` of a recipe without a draft: created, trained, evaluated, built, and lossless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests._support.tiny import make_llama, make_tokenizer
from tests.conftest import Run
from tests.training.test_train import prompts_file
from trtspec.methods.draft_formats.convert import convert_draft
from trtspec.recipe.load import load_recipe

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SHORT = ("--max-minutes", "5", "--max-tokens", "24")
STEPS, ONE_STEP = ("--steps", "100", "--learning-rate", "0.01", *SHORT), ("--steps", "1", *SHORT)
FEW = ("--prompts", "few.jsonl", "--max-tokens", "24")
LITTLE = 0.001  # scale of the layers
# the recipe's speculation for each method, and a dialect to export its draft to
METHODS = {
    "draft_target": ("draft_len: 3", ""),
    "eagle": ("options: {choices: [[0], [0, 0], [0, 0, 0]]}", ""),
    "eagle3": ("draft_len: 3", "speculators"),
    "p_eagle": ("draft_len: 3", "speculators"),
    "dflash": ("draft_len: 3", "speculators"),
    "dspark": ("draft_len: 3", "modelopt"),
    "medusa": ("options: {choices: [[0], [0, 0], [0, 0, 0]]}", ""),
    "redrafter": ("draft_len: 3", ""),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared store for responses and trainings, which all have the same target."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def recipe(workplace: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target with more layers than a draft has, and no draft.

    Its layers contribute little, so that the next token depends mostly on the last one and a few dozen short responses
    suffice for training.
    """
    monkeypatch.setenv("TRTSPEC_CACHE", str(store))
    make_llama(workplace / "target", 0, scale=0.3, vocab_size=262, num_hidden_layers=12, intermediate_size=64)
    file = workplace / "target" / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= LITTLE
    save_file(tensors, file, {"format": "pt"})
    make_tokenizer(workplace / "target")
    prompts_file(workplace / "prompts.jsonl", 60)
    prompts_file(workplace / "few.jsonl", 12)
    path = workplace / "recipe.yaml"
    path.write_text(
        "schema: trtspec.recipe/1\nname: tiny\ntarget: {model: ./target}\n"
        "speculation:\n  method: METHOD\n"
        "engine: {max_batch_size: 8, max_input_len: 64, max_seq_len: 128}\n"
        "gates: {lossless: true, prompts: ./prompts.jsonl}\n"
    )
    return path


@pytest.mark.parametrize("method", METHODS)
def test_draft_trained_from_scratch_builds_and_verifies(method: str, recipe: Path, store: Path, trtspec: Run) -> None:
    asked, dialect = METHODS[method]
    recipe.write_text(recipe.read_text().replace("METHOD", f"{method}\n  {asked}"))
    ended = trtspec("train", recipe, "--prompts", "prompts.jsonl", "--out", "made", "--write", "--json", *STEPS)
    found = ended.document
    assert (ended.code, found["refusals"]) == (0, []), ended.out
    before = found["before"]
    assert (found["from_scratch"], before["mean_accepted_len"], before["acceptance_rate"]) == (True, 1, 0)
    assert found["after"]["mean_accepted_len"] > 1.3
    assert load_recipe(recipe).recipe.speculation.draft.model.endswith("/made")
    assert trtspec("build", recipe).code == 0
    verified = trtspec("verify", "build/tiny", *FEW, "--json")
    assert verified.code == 0, verified.out
    if dialect:
        convert_draft(Path("made"), dialect, Path("exported"), "target")
        other = trtspec("build", recipe, "--set", "speculation.draft.model=exported", "--out", "build/exported")
        assert other.code == 0, other.err
        assert trtspec("verify", "build/exported", *FEW).code == 0
    again = trtspec("train", recipe, "--prompts", "prompts.jsonl", "--out", "again", "--json", *ONE_STEP)
    assert again.document["before"] == found["after"]  # it starts from the previous draft
    documents = [json.loads(path.read_text()) for path in store.rglob("entry.json")]
    assert [each.get("name") for each in documents].count("answer-prompts") == 1


def test_draft_that_costs_more_than_it_yields_is_rejected(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text().replace("METHOD", "draft_target\n  draft_len: 3"))
    sizes = ("--layers", "12", "--hidden-size", "32")
    ended = trtspec("train", recipe, "--prompts", "prompts.jsonl", *ONE_STEP, *sizes)
    assert ended.code == 112
    assert "rejected: a step yields" in ended.out
    assert "but costs" in ended.out
    assert not Path("drafts").exists()


@pytest.mark.parametrize(
    ("speculation", "more", "words"),
    [
        ("eagle3\n  draft_len: 3", ("--layers", "2"), "drafts of eagle3 do not support --layers"),
        ("eagle3\n  draft_len: 3", ("--lora", "2"), "--lora does not change a draft's weights"),
        (
            "eagle3\n  draft: {model: ./target}",
            ("--draft-vocab", "9"),
            "the sizes of the recipe's draft cannot be changed",
        ),
    ],
)
def test_unsupported_from_scratch_settings_are_rejected(
    speculation: str, more: tuple[str, ...], words: str, recipe: Path, trtspec: Run
) -> None:
    recipe.write_text(recipe.read_text().replace("METHOD", speculation))
    ended = trtspec("train", recipe, "--prompts", "prompts.jsonl", *more, *STEPS)
    assert ended.code == 1
    assert words in ended.err


@pytest.mark.parametrize("method", ["eagle3", "dspark"])
def test_draft_with_pruned_vocabulary_builds_and_verifies(method: str, recipe: Path, trtspec: Run) -> None:
    """`prune --vocab` of the result has the requested tokens, builds, is lossless, and can be exported."""
    recipe.write_text(recipe.read_text().replace("METHOD", f"{method}\n  draft_len: 3"))
    assert trtspec("train", recipe, "--prompts", "prompts.jsonl", "--out", "made", "--write", *STEPS).code == 0
    ended = trtspec("prune-vocab", recipe, "--vocab", "64", "--out", "small", "--max-tokens", "24", "--json")
    found = ended.document
    assert (found["draft"], found["draft_vocab_size"]) == ("small", 64)
    assert found["before"]["mean_accepted_len"] >= found["after"]["mean_accepted_len"] > 1
    assert found["before"]["step_cost"] > found["after"]["step_cost"] > 1
    assert json.loads(Path("small/config.json").read_text())["draft_vocab_size"] == 64
    convert_draft(Path("small"), "speculators", Path("exported"), "target")
    for draft in ("small", "exported"):
        built = trtspec("build", recipe, "--set", f"speculation.draft.model={draft}", "--out", f"build/{draft}")
        assert built.code == 0, built.err
        assert trtspec("verify", f"build/{draft}", *FEW).code == 0
    refused = trtspec("prune-vocab", recipe, "--vocab", "262", "--out", "other", "--max-tokens", "24")
    assert (refused.code, Path("other").exists()) == (1, False)
    assert "drafts 262 tokens, not more than the requested 262" in refused.err
