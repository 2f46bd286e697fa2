# SPDX-License-Identifier: Apache-2.0
"""The repository of engines: NVIDIA's tensors and parameters, each method's own values, and golden files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.tensorrt_llm.golden import REPOSITORIES, ROOT
from tests.serving.triton import upstream
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import Request, load_file, load_model, make_pb_utils, model_args
from tests.serving.triton.upstream import Tensor
from trtspec.backends.serving import relocate
from trtspec.backends.tensorrt_llm.artifact import EmitEngineRepository
from trtspec.backends.tensorrt_llm.placement import PlacedModel
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.python_models.fields import OLDER_NAMES
from trtspec.serving.triton.python_models.tensors import decode_token_lists

DOUBLE = Path(__file__).parents[2] / "doubles" / "tensorrtllm" / "model.py"
OUTSIDE = ("draft_target", "ngram")
LOOKAHEAD_SIZES = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
TYPES = ("", "BOOL", "UINT8", "", "", "UINT64", "", "", "INT32", "INT64", "FP16", "FP32", "", "STRING")

# Parameters that no repository sets, and the backend's behaviour without them.
LEFT_OUT = {
    "encoder_model_path": "engines lack an encoder",
    "cross_kv_cache_fraction": "without an encoder the executor refuses it",
    "max_attention_window_size": "the engine's max_seq_len decides",
    "sink_token_length": "no model here has sinks",
    "kv_cache_onboard_blocks": "for the backend's own use",
    "iter_stats_max_iterations": "the executor's own number",
    "request_stats_max_iterations": "the executor's own number: none",
    "num_nodes": "one",
    "lora_cache_optimal_adapter_size": "no engine here is built for LoRA",
    "lora_cache_max_adapter_size": "no engine here is built for LoRA",
    "lora_cache_gpu_memory_fraction": "no engine here is built for LoRA",
    "lora_cache_host_memory_bytes": "no engine here is built for LoRA",
    "lora_prefetch_dir": "no engine here is built for LoRA",
    "gpu_weights_percent": "all weights are on the GPU",
    "enable_context_fmha_fp32_acc": "off",
    "multi_block_mode": "on",
    "cuda_graph_mode": "off",
    "cuda_graph_cache_size": "of graphs that are off",
}


@pytest.fixture(scope="module")
def emitted(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """Return the configurations of all repositories by method and model."""
    root = tmp_path_factory.mktemp("emitted")
    for method, settings in REPOSITORIES.items():
        EmitEngineRepository((), settings).emit(root / method)
    return {method: configs(root / method) for method in REPOSITORIES}


def configs(repository: Path) -> dict[str, Any]:
    return {path.parent.name: load_config(path) for path in sorted(repository.glob("*/config.pbtxt"))}


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def facts(tensor: Any) -> Tensor:
    """Return a tensor of trtspec in the format of upstream's facts."""
    scalar = tensor.HasField("reshape") and not tensor.reshape.shape
    given = {"S": scalar, "O": getattr(tensor, "optional", False), "R": getattr(tensor, "allow_ragged_batch", False)}
    flags = "".join(flag for flag, is_set in given.items() if is_set)
    return Tensor(tensor.name, TYPES[tensor.data_type], tuple(tensor.dims), flags)


def by_name(tensors: Any) -> list[Tensor]:
    return sorted(map(facts, tensors))


@pytest.mark.slow
@pytest.mark.parametrize("method", REPOSITORIES)
def test_repository_matches_its_golden_files(emitted, method: str) -> None:
    assert emitted[method] == configs(ROOT / method), (
        "if it should be, run python -m tests.backends.tensorrt_llm.golden"
    )


def test_golden_directories_are_all_used() -> None:
    assert {path.name for path in ROOT.iterdir()} == {*REPOSITORIES}


@pytest.mark.parametrize("method", REPOSITORIES)
def test_repository_has_the_models_of_its_method(emitted, method: str) -> None:
    models = {"ensemble", "tensorrt_llm_bls", "preprocessing", "tensorrt_llm", "postprocessing"}
    models |= {"tensorrt_llm_draft"} if method == "draft_target" else set()
    assert {name: config.name for name, config in emitted[method].items()} == {name: name for name in models}


@pytest.mark.parametrize(
    ("method", "model"), [(m, "tensorrt_llm") for m in REPOSITORIES] + [("draft_target", "tensorrt_llm_draft")]
)
def test_engine_model_has_the_upstream_tensors(emitted, method: str, model: str) -> None:
    config = emitted[method][model]
    assert config.backend == "tensorrtllm"
    assert by_name(config.input) == sorted(upstream.ENGINE_INPUTS)
    assert by_name(config.output) == sorted(upstream.ENGINE_OUTPUTS)


def test_upstream_parameters_are_set_or_explicitly_omitted(emitted) -> None:
    engines = [
        config for repository in emitted.values() for config in repository.values() if config.backend == "tensorrtllm"
    ]
    known = {key for engine in engines for key in engine.parameters}
    assert len(engines) == len(REPOSITORIES) + 1
    assert known | LEFT_OUT.keys() == upstream.ENGINE_PARAMETERS
    assert not known & LEFT_OUT.keys()


@pytest.mark.parametrize("method", REPOSITORIES)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_inputs_differ_from_upstream_only_by_listed_tensors(emitted, method: str, model: str) -> None:
    """Encoders, prompt tables, LoRA and guided decoding require engines that trtspec does not build."""
    config = emitted[method][model]
    known, ours = {*upstream.ENSEMBLE_INPUTS}, {*map(facts, config.input)}
    added = ("num_draft_tokens", "use_draft_logits", *LOOKAHEAD_SIZES)  # the first two are in NVIDIA's BLS model
    older = {name for name, _ in OLDER_NAMES.values()}  # in NVIDIA's models before v0.18
    assert {tensor.name for tensor in ours - known} == {*added, *older, "add_special_tokens"}
    assert {tensor.name for tensor in known - ours} == {
        *("decoder_text_input", "prompt_embedding_table", "prompt_table_extra_id", "prompt_vocab_size"),
        *("lora_task_id", "lora_weights", "lora_config"),
        *("guided_decoding_guide_type", "guided_decoding_guide"),
    }


@pytest.mark.parametrize("method", REPOSITORIES)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_outputs_differ_from_upstream_only_by_listed_tensors(emitted, method: str, model: str) -> None:
    """An engine's outputs for logits, cache and timing are available from tensorrt_llm itself."""
    known, ours = {*upstream.ENSEMBLE_OUTPUTS}, {*map(facts, emitted[method][model].output)}
    steps = {Tensor("num_draft_steps", "INT32", (1,), ""), Tensor("accepted_by_position", "INT32", (-1,), "")}
    assert ours - known == {Tensor("sequence_length", "INT32", (-1,), ""), *steps}
    assert {tensor.name for tensor in known - ours} == {
        *("cum_log_probs", "output_log_probs", "context_logits", "generation_logits", "batch_index"),
        *("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"),
        *("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    }


@pytest.mark.parametrize("method", REPOSITORIES)
def test_ensemble_and_bls_model_differ_only_in_name(emitted, method: str) -> None:
    ensemble, model = emitted[method]["ensemble"], emitted[method]["tensorrt_llm_bls"]
    assert model.name == "tensorrt_llm_bls"
    model.name = ensemble.name
    assert ensemble == model


def test_models_share_batch_size_queue_and_streaming_settings(emitted) -> None:
    for method, repository in emitted.items():
        decoupled = {
            config.model_transaction_policy.decoupled
            for config in repository.values()
            if config.HasField("model_transaction_policy")
        }
        assert decoupled == {REPOSITORIES[method].streaming}
        assert {config.max_batch_size for config in repository.values()} == {8}
        batching = repository["tensorrt_llm"].dynamic_batching
        assert batching.default_queue_policy.max_queue_size == 128
        assert batching.max_queue_delay_microseconds == REPOSITORIES[method].max_queue_delay_us


DRAFTING = {"decoding_mode", "medusa_choices", "eagle_choices", *LOOKAHEAD_SIZES}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("none", {}),
        ("draft_target", {}),
        ("ngram", {}),
        ("redrafter", {"decoding_mode": "redrafter"}),
        (
            "lookahead",
            {
                "decoding_mode": "lookahead",
                "lookahead_window_size": "7",
                "lookahead_ngram_size": "6",
                "lookahead_verification_set_size": "5",
            },
        ),
    ],
)
def test_engine_has_only_the_drafting_parameters_of_its_method(emitted, method, expected) -> None:
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        if model in emitted[method]:
            told = parameters(emitted[method][model])
            assert {key: told[key] for key in DRAFTING & told.keys()} == expected


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_tree_choices_are_written_in_the_format_of_the_backend(emitted, method: str) -> None:
    told = parameters(emitted[method]["tensorrt_llm"])
    assert DRAFTING & told.keys() == {"decoding_mode", f"{method}_choices"}
    assert told["decoding_mode"] == method
    assert paths_of(told[f"{method}_choices"]) == [list(choice) for choice in REPOSITORIES[method].choices]


def paths_of(text: str) -> list[list[int]]:
    """Parse a tree like csvStrToVecVecInt: up to each brace, which a comma follows (utils.cc@19290813)."""
    assert re.fullmatch(r"(\{[\d,]+\},)*\{[\d,]+\}", text)
    return [[int(rank) for rank in path.strip(",{").split(",")] for path in text.split("}")[:-1]]


def test_two_engines_have_their_configured_placement_and_cache_fractions(emitted) -> None:
    target, draft = (parameters(emitted["draft_target"][f"tensorrt_llm{suffix}"]) for suffix in ("", "_draft"))
    placed = ("gpt_model_path", "gpu_device_ids", "participant_ids", "kv_cache_free_gpu_mem_fraction")
    assert [target[key] for key in placed] == ["../../engines/target", "0,1", "2,3", "0.5"]
    assert [draft[key] for key in placed] == ["../../engines/draft", "0", "1", "0.4"]
    assert target["speculative_decoding_fast_logits"] == draft["speculative_decoding_fast_logits"] == "true"


def test_unplaced_engine_has_no_gpu_or_participant_ids(tmp_path: Path) -> None:
    EmitEngineRepository((), replace(REPOSITORIES["none"], target=PlacedModel("tensorrt_llm", (), (), 0.9))).emit(
        tmp_path
    )
    told = parameters(configs(tmp_path)["tensorrt_llm"])
    assert not {"gpu_device_ids", "participant_ids"} & told.keys()


@pytest.mark.parametrize(("method", "draft"), [("draft_target", "tensorrt_llm_draft"), ("ngram", "")])
def test_bls_model_with_external_drafts_has_their_method_and_length(emitted, method: str, draft: str) -> None:
    wanted = REPOSITORIES[method]
    told = parameters(emitted[method]["tensorrt_llm_bls"])
    assert told["tensorrt_llm_model_name"] == "tensorrt_llm"
    assert told["tensorrt_llm_draft_model_name"] == draft
    assert (told["draft_method"], told["draft_len"]) == (method, str(wanted.draft_len))
    assert (told["speculation_options"], told["max_seq_len"], told["vocab_size"]) == (wanted.options, "2048", "32000")
    assert told["speculative_decoding_fast_logits"] == ("true" if method == "draft_target" else "false")
    assert told["tokenizer_dir"] == "../../tokenizer"


@pytest.mark.parametrize("method", [method for method in REPOSITORIES if method not in OUTSIDE])
def test_bls_model_with_internal_drafts_has_draft_method_none(emitted, method: str) -> None:
    told = parameters(emitted[method]["tensorrt_llm_bls"])
    names = ("tensorrt_llm_draft_model_name", "draft_method", "draft_len", "speculation_options", "tokenizer_dir")
    assert [told[name] for name in names] == ["", "none", "0", "{}", "../../tokenizer"]
    assert told["greedy_only"] == ("true" if method in ("medusa", "eagle", "lookahead") else "false")
    assert [told[name] for name in LOOKAHEAD_SIZES] == (["7", "6", "5"] if method == "lookahead" else ["", "", ""])


def test_relocation_makes_paths_absolute_and_changes_nothing_else(tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    EmitEngineRepository((), REPOSITORIES["draft_target"]).emit(artifact / "model_repository")
    relocate(artifact / "model_repository", tmp_path / "served", "/srv/artifact")
    before, after = configs(artifact / "model_repository"), configs(tmp_path / "served")
    paths = {
        "preprocessing": {"tokenizer_dir": "/srv/artifact/tokenizer"},
        "postprocessing": {"tokenizer_dir": "/srv/artifact/tokenizer"},
        "tensorrt_llm": {"gpt_model_path": "/srv/artifact/engines/target"},
        "tensorrt_llm_draft": {"gpt_model_path": "/srv/artifact/engines/draft"},
        "tensorrt_llm_bls": {"tokenizer_dir": "/srv/artifact/tokenizer"},
        "ensemble": {"tokenizer_dir": "/srv/artifact/tokenizer"},
    }
    assert after.keys() == before.keys() == paths.keys()
    for model, changed in paths.items():
        assert parameters(after[model]) == parameters(before[model]) | changed
        before[model].parameters.clear()
        after[model].parameters.clear()
        assert after[model] == before[model]
    files = {path.relative_to(tmp_path / "served") for path in (tmp_path / "served").rglob("*") if path.is_file()}
    assert files == {path.relative_to(artifact / "model_repository") for path in artifact.rglob("*") if path.is_file()}


def test_read_only_repository_can_be_relocated(tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    EmitEngineRepository((), REPOSITORIES["none"]).emit(artifact / "model_repository")
    for path in artifact.rglob("*"):
        path.chmod(0o444 if path.is_file() else 0o555)
    relocate(artifact / "model_repository", tmp_path / "served", str(artifact))
    told = parameters(load_config(tmp_path / "served" / "tensorrt_llm" / "config.pbtxt"))
    assert told["gpt_model_path"] == str(artifact / "engines" / "target")
    assert told["tokenizer_dir"] == ""


def test_additional_end_ids_become_stop_sequences_of_the_engine(tmp_path: Path) -> None:
    """The backend accepts one end id, but tokenizers of chat models have several."""
    ends = {"eos_token_id": [0, 5, 7]}
    tokenizer = Tokenizer(make_tokenizer(tmp_path / "tokenizer"))
    (tmp_path / "tokenizer" / "generation_config.json").write_text(json.dumps(ends))
    EmitEngineRepository((), REPOSITORIES["none"]).emit(tmp_path / "model_repository")
    model = load_model("preprocessing", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(tmp_path / "model_repository" / "preprocessing"))
    asked = {"QUERY": texts("a"), "REQUEST_OUTPUT_LEN": 1, "STOP_WORDS_DICT": texts("xy")}
    plain, given = (answer.outputs for answer in model.execute([Request(**asked), Request(**asked, END_ID=9)]))
    assert (plain["OUT_END_ID"].item(), given["OUT_END_ID"].item()) == (0, 9)
    assert decode_token_lists(plain["STOP_WORDS_IDS"][0]) == [tokenizer.encode("xy"), [5], [7]]
    assert decode_token_lists(given["STOP_WORDS_IDS"][0]) == [tokenizer.encode("xy")]


def texts(value: str) -> np.ndarray:
    return np.array([[value.encode()]], dtype=object)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("guided_decoding_backend", None, "Cannot find parameter with name: guided_decoding_backend"),
        ("gpt_model_path", "../../engines/target", "Both encoder and decoder model paths are empty"),
        ("lookahead_ngram_size", None, "lookahead parameters are not specified"),
        ("cross_kv_cache_fraction", "0.5", "parameter cross_kv_cache_fraction is '0.5'"),
        ("enable_kv_cache_reuse", "yes", "parameter enable_kv_cache_reuse is 'yes'"),
        ("medusa_choices", "[[0], [1]]", "parameter medusa_choices is"),
    ],
)
def test_backend_double_rejects_invalid_parameters(tmp_path: Path, key: str, value: str | None, message: str) -> None:
    EmitEngineRepository((), REPOSITORIES["lookahead"]).emit(tmp_path / "model_repository")
    (tmp_path / "engines" / "target").mkdir(parents=True)
    relocate(tmp_path / "model_repository", tmp_path / "served", str(tmp_path))
    pb_utils = make_pb_utils()
    pb_utils.TritonModelException = RuntimeError
    check = load_file(DOUBLE, pb_utils).check
    told = parameters(load_config(tmp_path / "served" / "tensorrt_llm" / "config.pbtxt"))
    check(told)
    told = {name: text for name, text in {**told, key: value}.items() if text is not None}
    with pytest.raises(RuntimeError, match=re.escape(message)):
        check(told)
