# SPDX-License-Identifier: Apache-2.0
"""The LLM API's repository: golden files, consistency of both documents, and the tensors of the ensemble."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.source_golden import LLMAPI, LLMAPI_CASES, emit_llmapi
from tests.serving.triton.fakes import load_model, make_pb_utils, model_args
from tests.serving.triton.test_repository import MADE
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.python_models.fields import OLDER_NAMES
from trtspec.serving.triton.python_models.tensors import NEUTRAL_FIELDS, Settings


def objects(repository: Path) -> dict[str, Any]:
    """Return every parsed document of a repository by its path."""
    parsers = {".pbtxt": load_config, ".yaml": lambda path: yaml.safe_load(path.read_text())}
    files = [path for path in sorted(repository.rglob("*")) if path.suffix in parsers]
    return {str(path.relative_to(repository)): parsers[path.suffix](path) for path in files}


@pytest.mark.parametrize("method", LLMAPI_CASES)
def test_repository_matches_its_golden_files(method: str, tmp_path: Path) -> None:
    emit_llmapi(method, tmp_path)
    assert objects(tmp_path) == objects(LLMAPI / method)
    assert {path.parent.name for path in tmp_path.glob("*/config.pbtxt")} == {
        "ensemble",
        "preprocessing",
        "tensorrt_llm",
        "postprocessing",
    }


@pytest.mark.parametrize("method", LLMAPI_CASES)
def test_batch_size_and_transaction_policy_match_in_both_files(method: str, tmp_path: Path) -> None:
    emit_llmapi(method, tmp_path)
    found = objects(tmp_path)
    config, document = found["tensorrt_llm/config.pbtxt"], found["tensorrt_llm/1/model.yaml"]
    assert document["triton_config"] == {
        "max_batch_size": config.max_batch_size,
        "decoupled": config.model_transaction_policy.decoupled,
    }
    assert document["max_batch_size"] == config.max_batch_size


def test_ensemble_tensors_match_the_model(tmp_path: Path) -> None:
    emit_llmapi("eagle3", tmp_path)
    found = objects(tmp_path)
    model = found["tensorrt_llm/config.pbtxt"]
    types = {tensor.name: tensor.data_type for tensor in model.input}
    ours = found["ensemble/config.pbtxt"]
    passed = load_model("ensemble", make_pb_utils()).PASSED_INPUTS
    handed = {passed[tensor.name]: tensor.data_type for tensor in ours.input if tensor.name in passed}
    assert handed.items() <= types.items()
    assert {*types} - {name for name, _ in OLDER_NAMES.values()} == {*handed} | MADE
    told = {tensor.name for tensor in ours.output} - {"text_output"}
    assert told <= {tensor.name for tensor in model.output}
    assert {"output_ids", "continuation", "sequence_length"} <= {tensor.name for tensor in model.output}
    assert {*NEUTRAL_FIELDS, "len_penalty"} <= {*types}


@pytest.fixture
def module():
    return load_model("tensorrt_llm_llmapi", make_pb_utils())


def arguments(root: Path, module: Any) -> dict[str, Any]:
    args = model_args(root / "tensorrt_llm")
    return module.read_arguments(root / "tensorrt_llm", 1, Settings(args))


def test_model_paths_become_absolute_and_hub_ids_stay_unchanged(module, tmp_path: Path) -> None:
    emit_llmapi("draft_target", tmp_path / "model_repository")
    read = arguments(tmp_path / "model_repository", module)
    assert read["model"] == str(tmp_path / "checkpoints/target")
    assert read["speculative_config"]["speculative_model"] == str(tmp_path / "checkpoints/draft")
    assert "triton_config" not in read
    assert module.resolve_model_path(tmp_path, "org/model") == "org/model"


def test_contradictory_files_are_an_error(module, tmp_path: Path) -> None:
    emit_llmapi("ngram", tmp_path)
    path = tmp_path / "tensorrt_llm" / "1" / "model.yaml"
    path.write_text(path.read_text().replace("decoupled: false", "decoupled: true"))
    with pytest.raises(TrtspecError, match=r"triton_config is .*True.*, but config.pbtxt has .*False") as caught:
        arguments(tmp_path, module)
    assert caught.value.where == str(path)


def test_parameters_contain_gpu_ids_and_greedy_only(tmp_path: Path) -> None:
    for method, gpus, greedy in (("draft_target", "2,3", "true"), ("eagle3", "", "false")):
        emit_llmapi(method, tmp_path / method)
        config = objects(tmp_path / method)["tensorrt_llm/config.pbtxt"]
        values = {key: value.string_value for key, value in config.parameters.items()}
        assert (values["gpu_device_ids"], values["greedy_only"]) == (gpus, greedy)
        assert json.loads(values["max_seq_len"]) == 2048
