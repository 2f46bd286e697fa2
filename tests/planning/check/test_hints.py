# SPDX-License-Identifier: Apache-2.0
"""Hints depend on the cause: only damaged files should be downloaded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import convert, make_llama, make_model
from tests.conftest import Run
from tests.families.sources import edit, rewrite
from tests.planning.check.finding import DRAFT, TARGET, replace, the_problem
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError
from trtspec.planning.inspection import inspect_path

DAMAGED = "download or save the file again: it was cut off or changed"
WEIGHTS = "model.safetensors"


def hint_of(root: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(root, "auto")
    assert caught.value.hint
    return caught.value.hint


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "hf")


def resize(tensors: dict[str, Any]) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(66, 32)
    tensors["lm_head.weight"] = torch.zeros(66, 32)


def widen(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = torch.zeros(64, 32).double()


CAUSES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "architecture": ({"architectures": ["SmolLM3ForCausalLM"]}, None, "docs/extending.md describes how to add"),
    "activation": ({"hidden_act": "gelu"}, None, "choose an engine.backend that runs the checkpoint without"),
    "value": ({"hidden_size": "32"}, None, "correct it in config.json"),
    "size that is absent": ({"hidden_size": None}, None, "config.json lacks hidden_size"),
    "resized embedding": ({}, resize, "set vocab_size: 66 in config.json"),
    "float64": ({}, widen, "save the weights"),
    "surplus": ({}, lambda tensors: tensors.update({"score.weight": torch.zeros(2)}), "remove them from the file"),
    "fewer layers": ({"num_hidden_layers": 3}, None, "compare architectures and num_hidden_layers"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "change", "words"), CAUSES.values(), ids=CAUSES.keys())
def test_hint_matches_the_cause(config: dict[str, Any], change: Any, words: str, source: Path) -> None:
    edit(source, **config)
    if change:
        rewrite(source, change)
    hint = hint_of(source)
    assert words in hint
    assert "again" not in hint or "layers" in hint  # a checkpoint that lacks layers may be truncated


def test_truncated_file_has_the_hint_to_download_again(source: Path) -> None:
    path = source / WEIGHTS
    path.write_bytes(path.read_bytes()[:-9])
    assert hint_of(source) == DAMAGED


def test_index_that_names_other_files_than_the_single_one_is_rejected(source: Path) -> None:
    tensors = load_file(source / WEIGHTS)
    save_file(tensors, source / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert hint_of(source) == "remove the weights that should not be used"


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "consolidated.safetensors", "model.fp16.safetensors"])
def test_file_beside_the_weights_is_ignored_and_named(name: str, source: Path, tmp_path: Path) -> None:
    before = load_file(convert(source, tmp_path / "before") / "rank0.safetensors")
    save_file({key: tensor * 2 for key, tensor in load_file(source / WEIGHTS).items()}, source / name)
    after = load_file(convert(source, tmp_path / "after") / "rank0.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert inspect_path(source)["ignored_files"] == [name]
    assert [path.name for path in load_source(source).weight_files] == [WEIGHTS]


def test_adapter_without_a_base_model_has_the_hint_to_merge(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "merge it into its base model" in hint_of(tmp_path)


def test_tensor_names_without_model_prefix_are_accepted(source: Path, tmp_path: Path) -> None:
    before = load_file(convert(source, tmp_path / "before") / "rank0.safetensors")
    tensors = {key.removeprefix("model."): tensor for key, tensor in load_file(source / WEIGHTS).items()}
    save_file(tensors, source / WEIGHTS)
    after = load_file(convert(source, tmp_path / "after") / "rank0.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_yarn_length_is_accepted_or_the_hint_names_the_key_to_edit(trtspec: Run, recipe: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    for role in ("target", "draft"):
        edit(recipe.parent / role, rope_parameters={**scaling, "rope_theta": 1e4})
    replace(recipe, "max_seq_len: 256", "max_seq_len: 1024")
    assert trtspec("check", recipe, "--set", "engine.backend=embedded").code == 0
    choice = ("--set", "engine.backend=vllm", "--set", "engine.gpu=h100", "--json")
    found = [each for each in trtspec("check", recipe, *choice).document["problems"] if each["code"] == "out-of-range"]
    assert [each["message"] for each in found] == ["max_seq_len 1024 is more than the target's 256 positions"]
    assert "set max_position_embeddings: 1024 in the target's config.json" in found[0]["hint"]
    edit(recipe.parent / "target", max_position_embeddings=1024)
    found = [each for each in trtspec("check", recipe, *choice).document["problems"] if each["code"] == "out-of-range"]
    assert found == []


def test_conflicting_rope_theta_is_rejected_for_target_and_draft(trtspec: Run, recipe: Path) -> None:
    for role, place in (("target", TARGET), ("draft", DRAFT)):
        before = (recipe.parent / role / "config.json").read_text()
        edit(recipe.parent / role, rope_theta=77.0)
        message, hint = the_problem(trtspec, recipe, place)
        assert "rope_theta is 77.0 at the top level and 10000.0 in rope_parameters" in message
        assert hint
        (recipe.parent / role / "config.json").write_text(before)


def test_value_head_is_skipped(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "qwen2")
    rewrite(source, lambda tensors: tensors.update({"v_head.summary.weight": torch.ones(1, 32)}))
    assert load_model(source, "auto").matched.skipped == {"v_head.summary.weight": "a value head used only in training"}
