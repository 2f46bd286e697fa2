# SPDX-License-Identifier: Apache-2.0
"""Invalid checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.planning.check.finding import DRAFT, TARGET, replace, rewrite, the_problem


def test_model_path_of_a_file_is_an_error(trtspec: Run, recipe: Path) -> None:
    replace(recipe, "./target", "./target/config.json")
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == "is a file, not a directory: target/config.json"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_unreadable_model_file_is_an_error(name: str, trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "target" / name
    path.unlink()
    path.mkdir()  # permissions do not stop root, but a directory does
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == f"target/{name}: not a regular file"


SERVED = (
    "Gemma2ForCausalLM, Gemma3ForCausalLM, GraniteForCausalLM, LlamaForCausalLM, MistralForCausalLM,"
    " MixtralForCausalLM, Olmo2ForCausalLM, Phi3ForCausalLM,"
    " Qwen2ForCausalLM, Qwen3ForCausalLM"
)


AS_IT_IS = (
    "engine.backend: llmapi or sglang or vllm runs the model without conversion; "
    "docs/extending.md describes how to add a family"
)
CORRECT = "correct it in config.json, or choose another checkpoint"


CONFIGS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"architectures": None}, "architectures is null, expected a list with one name", CORRECT),
    ({"architectures": []}, "architectures is [], expected a list with one name", CORRECT),
    (
        {"architectures": ["LlamaForCausalM"]},
        f"architecture 'LlamaForCausalM' is not supported; supported: {SERVED}",
        AS_IT_IS,
    ),
    ({"architectures": ["Falcon3"]}, f"architecture 'Falcon3' is not supported; supported: {SERVED}", AS_IT_IS),
    ({"hidden_size": "64"}, "hidden_size is '64', expected int", CORRECT),
]


@pytest.mark.parametrize(("changes", "message", "hint"), CONFIGS)
def test_invalid_config_value_is_reported_with_a_hint(
    changes: dict[str, Any], message: str, hint: str | None, trtspec: Run, recipe: Path
) -> None:
    rewrite(recipe.parent / "target" / "config.json", **changes)
    assert the_problem(trtspec, recipe, TARGET) == (f"target/config.json: {message}", hint)


def test_missing_shard_of_the_index_is_an_error(trtspec: Run, recipe: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (recipe.parent / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == (
        "target/model.safetensors.index.json: names the shard model-00002-of-00002.safetensors, which is missing"
    )


def test_truncated_shard_is_an_error(trtspec: Run, recipe: Path) -> None:
    shard = recipe.parent / "draft" / "model.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    message, _ = the_problem(trtspec, recipe, DRAFT)
    whole, left = f"{len(content):,}", f"{len(content) - 100:,}"
    assert message == (f"draft/model.safetensors: truncated: its tensors need {whole} bytes, but the file has {left}")


def test_tensor_shape_that_contradicts_the_config_is_an_error(trtspec: Run, recipe: Path) -> None:
    rewrite(recipe.parent / "draft" / "config.json", intermediate_size=40)
    message, _ = the_problem(trtspec, recipe, DRAFT)
    assert message == (
        "draft: 3 tensors do not add up:\n"
        "  model.layers.0.mlp.down_proj.weight: [16, 32] in model.safetensors, but [16, 40] according to config.json\n"
        "  model.layers.0.mlp.gate_proj.weight: [32, 16] in model.safetensors, but [40, 16] according to config.json\n"
        "  model.layers.0.mlp.up_proj.weight: [32, 16] in model.safetensors, but [40, 16] according to config.json"
    )


def test_hub_model_that_is_not_cached_is_an_error_offline(trtspec: Run, recipe: Path) -> None:
    commit = "0abcdef123" * 4
    replace(recipe, "model: ./target", f"model: org/name\n  revision: {commit}")
    for command in ("check", "plan"):  # tests/everyday/test_hub_check.py covers the hub
        (problem,) = trtspec(command, recipe, "--json").document["problems"]
        message = f"org/name at commit {commit}: not in the hub cache, and HF_HUB_OFFLINE is set"
        assert (problem["line"], problem["message"]) == (TARGET[0], message)
        assert problem["hint"] == "unset HF_HUB_OFFLINE and try again"


def test_cached_hub_model_is_accepted(trtspec: Run, recipe: Path) -> None:
    commit = "0abcdef123" * 4
    snapshot = recipe.parent / "hub" / "models--org--name" / "snapshots" / commit
    shutil.copytree(recipe.parent / "target", snapshot)
    replace(recipe, "model: ./target", f"model: org/name\n  revision: {commit}")
    assert trtspec("check", recipe).code == 0
