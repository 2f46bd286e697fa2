# SPDX-License-Identifier: Apache-2.0
"""A tied config.json with a stored LM head: the head that is used, and the diagnostics."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import FAMILY_SHAPES, convert, make_model, reference_model
from tests.conftest import Run
from tests.families.sources import edit, rewrite
from tests.planning.check.finding import DRAFT, TARGET
from trtspec.checkpoints.safetensors import PIECE_ITEMS, read_header
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import load_model, read_model
from trtspec.checkpoints.tied_embeddings import have_equal_values
from trtspec.core.errors import CheckpointError
from trtspec.planning.inspection import inspect_path

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize("family", FAMILY_SHAPES)
@pytest.mark.parametrize("by_default", [False, True])
def test_different_head_is_used_as_transformers_does(family: str, by_default: bool, tmp_path: Path) -> None:
    if by_default and not family.startswith("gemma"):
        pytest.skip("this family is not tied by default")
    source = make_model(tmp_path / "hf", family)
    edit(source, tie_word_embeddings=None if by_default else True, pad_token_id=0)
    theirs = reference_model(source).lm_head.weight.detach()
    ours = load_file(convert(source, tmp_path / "c") / "rank0.safetensors")[HEAD]
    assert torch.equal(ours.float(), theirs)
    model = load_model(source, "auto")
    (warning,) = model.ties.diagnose(converts=True)
    assert warning.severity == "warning"
    assert f"{HEAD} to {EMBEDDING}" in warning.message
    (error,) = model.ties.diagnose(converts=False)
    assert error.severity == "error"
    document = inspect_path(source)
    assert document["lm_head"] == f"{HEAD}, from the file: config.json ties it to {EMBEDDING}, whose values differ"
    assert document["skipped"] == {}


def equal_in_another_dtype(tensors: dict[str, Any]) -> None:
    tensors[HEAD] = tensors[EMBEDDING].float()


def zero_of_the_other_sign(tensors: dict[str, Any]) -> None:
    tensors[EMBEDDING][0, 0] = 0.0
    tensors[HEAD] = tensors[EMBEDDING].clone()
    tensors[HEAD][0, 0] = -0.0


@pytest.mark.parametrize("change", [equal_in_another_dtype, zero_of_the_other_sign])
def test_equal_head_is_tied(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama")
    edit(source, tie_word_embeddings=True)
    rewrite(source, change)
    assert load_model(source, "auto").config.tied_embeddings
    assert inspect_path(source)["lm_head"] == f"{EMBEDDING}, tied to the embedding"


def test_different_head_in_another_shard_is_found(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama")
    edit(source, tie_word_embeddings=True)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    save_file({HEAD: tensors.pop(HEAD)}, source / "model-00002-of-00002.safetensors")
    save_file(tensors, source / "model-00001-of-00002.safetensors")
    assert load_model(source, "auto").ties.differ


def test_head_without_embedding_is_used_for_both(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama")
    edit(source, tie_word_embeddings=True)
    rewrite(source, lambda tensors: tensors.pop(EMBEDDING))
    ours = load_file(convert(source, tmp_path / "c") / "rank0.safetensors")
    assert torch.equal(ours["transformer.vocab_embedding.weight"], ours[HEAD])


def test_missing_head_of_untied_model_is_rejected(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama")
    rewrite(source, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(CheckpointError) as caught:
        load_model(source, "auto")
    assert caught.value.hint
    assert "tie_word_embeddings: true" in caught.value.hint


def test_head_of_preview_is_not_reported_as_equal(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama")
    edit(source, tie_word_embeddings=True)
    loaded = load_source(source)
    preview = type(loaded)(loaded.root, loaded.config, loaded.tensors, absent={"model.safetensors": ("0", 1)})
    assert "when the weights are available" in read_model(preview, "auto").matched.skipped[HEAD]


def test_difference_in_the_last_item_is_found(tmp_path: Path) -> None:
    one = torch.zeros(PIECE_ITEMS + 3, dtype=torch.bfloat16)
    other = one.float()
    other[-1] = 1.0
    save_file({"one": one, "same": one.float(), "other": other}, tmp_path / "a.safetensors")
    tensors = read_header(tmp_path / "a.safetensors")
    assert have_equal_values(tensors["one"], tensors["same"])
    assert not have_equal_values(tensors["one"], tensors["other"])


def test_changed_file_is_compared_again(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"one": torch.zeros(8), "other": torch.zeros(8)}, path)
    tensors = read_header(path)
    assert have_equal_values(tensors["one"], tensors["other"])
    save_file({"one": torch.zeros(8), "other": torch.ones(8)}, path)
    assert not have_equal_values(tensors["one"], tensors["other"])


def test_check_warns_of_tied_heads_and_rejects_them_for_engines_that_read_config(trtspec: Run, recipe: Path) -> None:
    for role, place in (("target", TARGET), ("draft", DRAFT)):
        shutil.copytree(recipe.parent / role, recipe.parent / f"{role}-before")
        edit(recipe.parent / role, tie_word_embeddings=True)
        document = trtspec("check", recipe, "--json").document
        found = [each for each in document["problems"] if each["code"] == "tied-head"]
        assert [(each["line"], each["severity"]) for each in found] == [(place[0], "warning")]
        shutil.rmtree(recipe.parent / role)
        (recipe.parent / f"{role}-before").rename(recipe.parent / role)
    edit(recipe.parent / "target", tie_word_embeddings=True)
    as_it_is = ("--set", "engine.backend=vllm", "--set", "engine.gpu=h100", "--set", "speculation.method=ngram")
    document = trtspec("check", recipe, "--json", *as_it_is).document
    assert "tied-head" in {each["code"] for each in document["problems"] if each["severity"] == "error"}
