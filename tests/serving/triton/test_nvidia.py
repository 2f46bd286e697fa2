# SPDX-License-Identifier: Apache-2.0
"""`serving.defaults: nvidia` without a server: NVIDIA's tensors, defaults of omitted fields, and rejections.

`python -m tests.serving.triton.test_nvidia` regenerates golden/; review the changes before you keep them.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.backends.tensorrt_llm.golden import REPOSITORIES
from tests.conftest import Run
from tests.serving.triton import upstream
from tests.serving.triton.artifact import SERVING, emit_repository, make_tokenizer
from tests.serving.triton.fakes import Request, load_model, make_pb_utils, model_args
from trtspec.backends.base import backends
from trtspec.backends.tensorrt_llm.artifact import EmitEngineRepository
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.nvidia_compat import NVIDIA
from trtspec.serving.triton.python_models.tensors import HeldTensors, RequestTensors, check_unsupported_inputs
from trtspec.serving.triton.python_models.token_io import TokenReader

GOLDEN = Path(__file__).with_name("golden")
TYPES = ("", "BOOL", "UINT8", "", "", "UINT64", "", "", "INT32", "INT64", "FP16", "FP32", "", "STRING")
TENSORS = {
    "ensemble": (upstream.ENSEMBLE_INPUTS, upstream.ENSEMBLE_OUTPUTS),
    "tensorrt_llm": (upstream.ENGINE_INPUTS, upstream.ENGINE_OUTPUTS),
    "preprocessing": (upstream.PREPROCESSING_INPUTS, upstream.PREPROCESSING_OUTPUTS),
    "postprocessing": (upstream.POSTPROCESSING_INPUTS, upstream.POSTPROCESSING_OUTPUTS),
}


def emit(out: Path) -> Path:
    emit_repository(out, replace(SERVING, defaults=NVIDIA))
    return out


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("artifact")
    make_tokenizer(root / "tokenizer")
    return emit(root / "model_repository")


def facts(tensor: Any) -> tuple[Any, ...]:
    """Return the properties of a tensor that are visible to clients."""
    return tensor.name, TYPES[tensor.data_type], tuple(tensor.dims), getattr(tensor, "optional", False)


def lacking(ours: Any, theirs: list[upstream.Tensor]) -> set[Any]:
    """Return NVIDIA's tensors that differ from trtspec's."""
    wanted = {(each.name, each.data_type, each.dims, "O" in each.flags) for each in theirs}
    return wanted - {facts(tensor) for tensor in ours}


@pytest.mark.parametrize("model", TENSORS)
def test_torch_engine_model_declares_all_nvidia_tensors(repository: Path, model: str) -> None:
    config = load_config(repository / model / "config.pbtxt")
    inputs, outputs = TENSORS[model]
    assert not lacking(config.input, inputs)
    assert not lacking(config.output, outputs)
    names = [tensor.name for tensor in config.input]
    assert len(names) == len({*names})


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_level_engine_model_declares_all_nvidia_tensors(tmp_path: Path, model: str) -> None:
    EmitEngineRepository((), replace(REPOSITORIES["draft_target"], defaults=NVIDIA)).emit(tmp_path)
    inputs, outputs = {
        "ensemble": (upstream.ENSEMBLE_INPUTS, upstream.ENSEMBLE_OUTPUTS),
        "tensorrt_llm_bls": (upstream.BLS_INPUTS, upstream.BLS_OUTPUTS),
    }[model]
    config = load_config(tmp_path / model / "config.pbtxt")
    assert not lacking(config.input, inputs)
    assert not lacking(config.output, outputs)
    engine = load_config(tmp_path / "tensorrt_llm" / "config.pbtxt").parameters
    assert engine["exclude_input_in_output"].string_value == "false"
    assert "defaults" not in engine, "NVIDIA's own backend has NVIDIA's defaults"
    before = load_config(tmp_path / "preprocessing" / "config.pbtxt").parameters
    assert before["stop_at_all_end_ids"].string_value == "false"


def test_nvidia_repository_matches_the_golden_files(repository: Path) -> None:
    for path in repository.glob("*/config.pbtxt"):
        golden = GOLDEN / path.relative_to(repository)
        assert path.read_text() == golden.read_text(), "to accept it, run python -m tests.serving.triton.test_nvidia"


def test_repository_without_the_defaults_key_has_no_nvidia_tensors(tmp_path: Path) -> None:
    emit_repository(tmp_path)
    for path in tmp_path.glob("*/config.pbtxt"):
        config = load_config(path)
        assert "defaults" not in config.parameters
        assert not {"lora_weights", "IMAGE_URL", "context_logits"} & {each.name for each in config.input}


def tensors(**inputs: Any) -> RequestTensors:
    request = Request(**inputs)
    return HeldTensors(RequestTensors(make_pb_utils(), request), [*inputs])


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("lora_task_id", np.array([[0]], np.uint64)),
        ("guided_decoding_guide", np.array([[b"x"]], object)),
        ("prompt_embedding_table", np.zeros((1, 2, 2), np.float16)),
        ("runtime_top_p_decay", np.array([[0.5]], np.float32)),
        ("beam_search_diversity_rate", np.array([[0.5]], np.float32)),
    ],
)
def test_unsupported_input_is_rejected_by_name(name: str, array: np.ndarray) -> None:
    with pytest.raises(TrtspecError, match=rf"{name}.* is not supported by X"):
        check_unsupported_inputs(tensors(**{name: array}), [name], "X")


def test_unsupported_inputs_with_neutral_values_are_accepted() -> None:
    neutral = {
        "early_stopping": np.array([[True]]),
        "runtime_top_p_decay": np.array([[1.0]], np.float32),
        "runtime_top_p_reset_ids": np.array([[-1]], np.int32),
        "decoder_text_input": np.array([[b""]], object),
        "lora_weights": np.zeros((1, 0, 4), np.float16),
    }
    check_unsupported_inputs(tensors(**neutral), [*neutral, "lora_config"], "X")


def test_only_the_given_end_id_ends_a_text(repository: Path) -> None:
    tokenizer = Tokenizer(repository.parent / "tokenizer")
    own = tokenizer.end_ids[0]
    asked = {"input_ids": np.array([[5]], np.int32), "input_lengths": 1, "request_output_len": 9}
    reader = TokenReader(tokenizer, is_nvidia=True)
    ends = [reader.read(tensors(**asked, **given))["end_ids"] for given in ({}, {"end_id": own}, {"end_id": -1})]
    assert ends == [(), (own,), ()]


def test_stop_word_of_a_special_token_becomes_an_end_id(repository: Path) -> None:
    """It lacks a text that could be searched for; further end ids therefore reach a model that accepts a single one."""
    tokenizer = Tokenizer(repository.parent / "tokenizer")
    words = np.array([[[tokenizer.end_ids[0], *tokenizer.encode("ab")], [1, 3, -1]]], np.int32)
    found = TokenReader(tokenizer, is_nvidia=True).read(
        tensors(input_ids=np.array([[5]], np.int32), input_lengths=1, request_output_len=9, stop_words_list=words)
    )
    assert (found["end_ids"], found["stop"]) == (tokenizer.end_ids, ("ab",))


def test_preprocessing_matches_nvidia(repository: Path) -> None:
    tokenizer = repository.parent / "tokenizer"
    (tokenizer / "tokenizer_config.json").write_text('{"eos_token": "<end>", "pad_token": "!"}')
    (tokenizer / "generation_config.json").write_text('{"eos_token_id": [5, 0]}')
    model = load_model("preprocessing", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(repository / "preprocessing"))
    asked = {"QUERY": np.array([[b"a"]], object), "REQUEST_OUTPUT_LEN": 1}
    plain, given, refused = model.execute(
        [Request(**asked), Request(**asked, PAD_ID=9), Request(**asked, IMAGE_URL=np.array([[b"http://x"]], object))]
    )
    said = plain.outputs
    assert said["STOP_WORDS_IDS"].shape == said["BAD_WORDS_IDS"].shape == (1, 2, 0)
    assert said["EMBEDDING_BIAS"].shape == (1, 0)
    assert said["OUT_END_ID"].item() == 0, "the eos token, regardless of generation_config.json"
    assert said["OUT_PAD_ID"].item() == Tokenizer(tokenizer).encode("!")[0]
    assert given.outputs["OUT_PAD_ID"].item() == 9
    assert refused.error.message.startswith("IMAGE_URL is not supported")


def test_check_rejects_nvidia_defaults_for_unsupported_backends(trtspec: Run, recipe: Path) -> None:
    assert {name for name, each in backends().items() if NVIDIA in each.defaults} == {"embedded", "tensorrt_llm"}
    assert trtspec("check", recipe, "--set", "serving.defaults=nvidia", "--json").document["problems"] == []
    ended = trtspec("check", recipe, "--set", "serving.defaults=nvidia", "--set", "engine.backend=vllm", "--json")
    (problem,) = [each for each in ended.document["problems"] if each["path"] == "serving.defaults"]
    assert (ended.code, problem["code"]) == (1, "not-supported")
    assert problem["hint"] == "remove it, or set engine.backend: embedded or tensorrt_llm"


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with TemporaryDirectory() as place:
        for config in emit(Path(place)).glob("*/config.pbtxt"):
            (GOLDEN / config.parent.name).mkdir(parents=True)
            shutil.copyfile(config, GOLDEN / config.parent.name / config.name)
