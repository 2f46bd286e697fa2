# SPDX-License-Identifier: Apache-2.0
"""vLLM's repository: golden files, its adapter's sampling parameters, and its relocation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.source_golden import DRAFT, TARGET, VLLM, VLLM_CASES, emit_vllm, vllm_case
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import Request, load_model, make_pb_utils, model_args
from trtspec.backends.vllm.arguments import model_json
from trtspec.backends.vllm.artifact import MODEL_JSON, repository_step, stage
from trtspec.serving.triton.config import load_config, render_config

PLAIN = {
    "max_tokens": 9,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "stop": [],
    "ignore_eos": False,
    "stop_token_ids": [0],
}


def objects(repository: Path) -> dict[str, Any]:
    """Return every parsed document of a repository by its path."""
    parsers = {".pbtxt": load_config, ".json": lambda path: json.loads(path.read_text())}
    files = [path for path in sorted(repository.rglob("*")) if path.suffix in parsers]
    return {str(path.relative_to(repository)): parsers[path.suffix](path) for path in files}


@pytest.mark.parametrize("method", VLLM_CASES)
def test_repository_matches_its_golden_files(method: str, tmp_path: Path) -> None:
    emit_vllm(method, tmp_path)
    assert objects(tmp_path) == objects(VLLM / method)
    configs = [load_config(path) for path in tmp_path.glob("*/config.pbtxt")]
    assert {config.name for config in configs} == {"ensemble", "sampling_parameters", "vllm_model"}
    assert all(config.max_batch_size == 0 for config in configs)


def test_ensemble_steps_match_the_tensors_of_the_models(tmp_path: Path) -> None:
    emit_vllm("ngram", tmp_path)
    configs = {path.parent.name: load_config(path) for path in tmp_path.glob("*/config.pbtxt")}
    ensemble = configs["ensemble"]
    types = {tensor.name: tensor.data_type for tensor in [*ensemble.input, *ensemble.output]}
    for step in ensemble.ensemble_scheduling.step:
        model = configs[step.model_name]
        assert {tensor.name for tensor in model.input} == {*step.input_map}
        assert {tensor.name for tensor in model.output} == {*step.output_map}
        for tensors, mapped in ((model.input, step.input_map), (model.output, step.output_map)):
            for tensor in tensors:
                outer = mapped[tensor.name]
                assert types.setdefault(outer, tensor.data_type) == tensor.data_type, (step.model_name, tensor.name)
    assert {tensor.name for tensor in ensemble.input if not tensor.optional} == {"text_input", "max_tokens"}


@pytest.mark.parametrize("method", ["draft_target", "eagle"])
def test_relocation_makes_paths_absolute_and_changes_nothing_else(method: str, tmp_path: Path) -> None:
    emit_vllm(method, tmp_path / "model_repository")
    before = objects(tmp_path / "model_repository")
    stage(tmp_path / "model_repository", tmp_path / "served", "/artifact")
    document = json.loads((tmp_path / "served" / MODEL_JSON).read_text())
    assert document["model"] == ("/artifact/checkpoints/target" if method == "draft_target" else "org/model")
    assert document["speculative_config"]["model"] == "/artifact/checkpoints/draft"
    moved = objects(tmp_path / "served")
    adapter = moved["sampling_parameters/config.pbtxt"]
    assert adapter.parameters["tokenizer_dir"].string_value == "/artifact/tokenizer"
    adapter.parameters["tokenizer_dir"].string_value = "../../tokenizer"
    moved[str(MODEL_JSON)] = before[str(MODEL_JSON)]
    assert moved == before, "everything else is unchanged"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    root = tmp_path_factory.mktemp("artifact")
    make_tokenizer(root / "tokenizer")
    emit_vllm("ngram", root / "model_repository")
    model = load_model("sampling_parameters", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(root / "model_repository" / "sampling_parameters"))
    return model


def texts(*values: str) -> np.ndarray:
    return np.array([[value.encode() for value in values]], object)


def answer(adapter: Any, **inputs: Any) -> Any:
    [response] = adapter.execute([Request(**{"text_input": texts("a"), "max_tokens": 9, **inputs})])
    return response


@pytest.mark.parametrize(
    ("inputs", "changed"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 1.0, "seed": 7}, {"temperature": 0.5, "seed": 7}),
        ({"temperature": 0.5, "top_p": 1.0, "seed": 2**63 - 1}, {"temperature": 0.5, "seed": 2**63 - 1}),
        ({"top_k": 40}, {"temperature": 1.0, "top_k": 40}),
        ({"top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        ({"top_p": 0.0, "top_k": 1}, {"top_k": 1}),
        ({"stop_words": texts("x", "", "yz")}, {"stop": ["x", "yz"]}),
        ({"end_id": 0}, {}),
        ({"end_id": -1}, {"ignore_eos": True, "stop_token_ids": []}),
        ({"end_id": 5}, {"ignore_eos": True, "stop_token_ids": [5]}),
        ({"beam_width": 1, "repetition_penalty": 1.0, "pad_id": 3, "bad_words": texts("")}, {}),
        ({"num_draft_tokens": 8}, {}),
        *(
            (
                {"guided_decoding_guide_type": texts(kind), "guided_decoding_guide": texts(guide)},
                {"structured_outputs": json.dumps({field: guide})},
            )
            for kind, field, guide in (
                ("json_schema", "json", '{"type":"object"}'),
                ("regex", "regex", "a+"),
                ("ebnf_grammar", "grammar", 'root ::= "a"'),
            )
        ),
        ({"guided_decoding_guide_type": texts("json")}, {"structured_outputs": json.dumps({"json": "{}"})}),
    ],
)
def test_request_is_converted_to_vllm_sampling_parameters(inputs, changed, adapter) -> None:
    outputs = answer(adapter, **inputs).outputs
    assert json.loads(outputs["sampling_parameters"].item()) == {**PLAIN, **changed}
    assert outputs["exclude_input"].tolist() == [[True]]
    assert outputs["return_counts"].tolist() == [[True]]


@pytest.mark.parametrize(("ids", "stops"), [([5], [5]), ([5, 0], [5, 0]), ([], [])])
def test_end_ids_set_stop_token_ids_and_ignore_eos(ids: list[int], stops: list[int], tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    emit_vllm("ngram", tmp_path / "model_repository")
    model = load_model("sampling_parameters", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(tmp_path / "model_repository" / "sampling_parameters"))
    said = json.loads(answer(model).outputs["sampling_parameters"].item())
    assert said["stop_token_ids"] == stops
    assert said["ignore_eos"] == (0 not in ids), "vLLM would end a text at the tokenizer's eos token, which is 0"


def test_omitted_sampling_options_have_the_values_of_generation_config(tmp_path: Path) -> None:
    root, settings = tmp_path / "model_repository", {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "generation_config.json").write_text(json.dumps(settings))
    repository_step(model_json(vllm_case("ngram"), TARGET, DRAFT), "model").emit(root)
    model = load_model("sampling_parameters", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(root / "sampling_parameters"))
    said = json.loads(answer(model).outputs["sampling_parameters"].item())
    assert (said["temperature"], said["top_k"], said["top_p"]) == (0.6, 50, 0.9)
    greedy = json.loads(answer(model, temperature=np.float32(0.0)).outputs["sampling_parameters"].item())
    assert greedy["temperature"] == 0.0
    for name in ("ensemble", "sampling_parameters"):  # clients read the ensemble's
        assert load_config(root / name / "config.pbtxt").parameters["defaults"].string_value == "model"


def test_num_draft_tokens_of_an_artifact_without_its_draft_length_is_an_error(tmp_path: Path) -> None:
    """Artifacts of earlier versions lack the parameter; their engines may draft."""
    root = tmp_path / "model_repository"
    make_tokenizer(tmp_path / "tokenizer")
    emit_vllm("ngram", root)
    path = root / "sampling_parameters" / "config.pbtxt"
    config = load_config(path)
    del config.parameters["draft_len"]
    path.write_text(render_config(config))
    model = load_model("sampling_parameters", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(root / "sampling_parameters"))
    error = answer(model, num_draft_tokens=8).error.message
    assert error.startswith("num_draft_tokens 8 is not supported by vLLM, whose draft length is the same")


def test_prompt_is_returned_on_request(adapter) -> None:
    assert answer(adapter, exclude_input_in_output=False).outputs["exclude_input"].tolist() == [[False]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"beam_width": 4}, "beam_width 4 is not supported by vLLM"),
        ({"bad_words": texts("x")}, "bad_words is not supported by vLLM"),
        ({"return_generation_logits": True}, "return_generation_logits is not supported by vLLM"),
        (
            {"num_draft_tokens": 0},
            "num_draft_tokens 0 is not supported by vLLM, whose draft length 8 is the same for all",
        ),
        (
            {"guided_decoding_guide_type": texts("xml")},
            "the guide type is 'xml', expected one of json, json_schema, regex",
        ),
        ({"guided_decoding_guide_type": texts("regex")}, "the regex guide is empty"),
        (
            {"guided_decoding_guide_type": texts("regex"), "guided_decoding_guide": texts("a" * 131073)},
            "the guide has 131,073 bytes, expected at most 131,072",
        ),
        ({"text_input": texts("")}, "text_input is empty"),
        ({"seed": 2**63}, "seed is 9223372036854775808, but vLLM supports at most 9223372036854775807"),
        ({"max_tokens": 0}, "max_tokens is 0, expected at least 1"),
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        (
            {"stream": True, "exclude_input_in_output": False},
            "exclude_input_in_output: false is not served in a stream by vLLM",
        ),
    ],
)
def test_unsupported_request_field_returns_an_error(inputs, message: str, adapter) -> None:
    assert answer(adapter, **inputs).error.message.startswith(message)
