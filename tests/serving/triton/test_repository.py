# SPDX-License-Identifier: Apache-2.0
"""The emitted repository: its content, that it can be moved, and that its models fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.serving.triton.artifact import ENGINE, SERVING, emit_repository
from tests.serving.triton.fakes import load_model, make_pb_utils
from trtspec.backends.common.steps import TEXT_MODELS
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.config import load_config, render_config
from trtspec.serving.triton.python_models.tensors import NEUTRAL_FIELDS

# Names in NVIDIA's inflight_batcher_llm repository that clients send and read.
OLDER_NAMES = ["random_seed", "min_length", "return_kv_cache_reuse_stats"]
ENSEMBLE_INPUTS = [
    "text_input",
    "max_tokens",
    "end_id",
    "pad_id",
    "stop_words",
    "bad_words",
    "top_k",
    "top_p",
    "temperature",
    "seed",
    "stream",
    "beam_width",
    "length_penalty",
    "repetition_penalty",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "exclude_input_in_output",
    "return_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "num_return_sequences",
    "num_draft_tokens",
    "add_special_tokens",
    "embedding_bias_words",
    "embedding_bias_weights",
    "prompt_ignore_length",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
    "num_top_logprobs",
    *OLDER_NAMES,
]
ENSEMBLE_OUTPUTS = [
    "text_output",
    "sequence_length",
    "sequence_index",
    "acceptance_rate",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
    "generation_logits",
    "num_input_tokens",
    "num_output_tokens",
    "output_log_probs",
    "cum_log_probs",
    "top_logprobs",
    "top_logprob_ids",
]


def emitted(root: Path, has_draft: bool = True, **changes):
    emit_repository(root, replace(SERVING, **changes), has_draft=has_draft)
    return {model: load_config(root / model / "config.pbtxt") for model in TEXT_MODELS}


def parameters(config) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def test_recipe_values_are_emitted_in_their_config_fields(tmp_path: Path) -> None:
    configs = emitted(tmp_path, max_batch_size=3, max_queue_size=9, max_queue_delay_us=77)
    assert all(config.max_batch_size == 3 for config in configs.values())
    model = configs["tensorrt_llm"]
    assert model.model_transaction_policy.decoupled
    assert model.dynamic_batching.max_queue_delay_microseconds == 77
    assert not model.dynamic_batching.HasField("default_queue_policy")  # the engine limits the waiting requests
    assert configs["ensemble"].dynamic_batching.default_queue_policy.max_queue_size == 9
    whole = emitted(tmp_path / "whole", max_queue_size=9, streaming=False)["tensorrt_llm"]
    assert whole.dynamic_batching.default_queue_policy.max_queue_size == 9
    assert parameters(model) == {
        "gpt_model_path": "../../checkpoints/target",
        "draft_model_path": "../../checkpoints/draft",
        "tokenizer_dir": "../../tokenizer",
        "engine_settings": ENGINE.as_json(),
        "token_channels": "true",
    }


def test_warmup_parameter_is_set_only_for_the_engine_model(tmp_path: Path) -> None:
    configs = emitted(tmp_path, warmup=True)
    assert {model for model in TEXT_MODELS if parameters(configs[model]).get("warmup") == "true"} == {"tensorrt_llm"}


def test_repository_without_streaming_and_draft_has_no_decoupling_or_draft_path(tmp_path: Path) -> None:
    configs = emitted(tmp_path, streaming=False, has_draft=False)
    assert not configs["ensemble"].model_transaction_policy.decoupled
    assert not configs["tensorrt_llm"].model_transaction_policy.decoupled
    assert parameters(configs["tensorrt_llm"])["draft_model_path"] == ""


def test_emission_is_reproducible_without_placeholders_or_machine_paths(tmp_path: Path) -> None:
    emitted(tmp_path / "a")
    emitted(tmp_path / "b")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [str(path) for path in files if path.name == "model.py"] == [
        f"{model}/1/model.py" for model in ("ensemble", "postprocessing", "preprocessing", "tensorrt_llm")
    ]
    for path in files:
        content = (tmp_path / "a" / path).read_bytes()
        assert content == (tmp_path / "b" / path).read_bytes()
        assert b"${" not in content
        assert str(tmp_path).encode() not in content


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_model_repository_configs_parse_and_render(model: str) -> None:
    config = load_config(model_repository_dir() / model / "config.pbtxt")
    assert config.name == model
    names = [tensor.name for tensor in [*config.input, *config.output]]
    assert all(tensor.dims for tensor in [*config.input, *config.output])
    assert len({*names}) == len(names) or model == "preprocessing"  # REQUEST_OUTPUT_LEN is an input and an output
    assert render_config(config)


def test_ensemble_declares_exactly_the_client_inputs_and_outputs(tmp_path: Path) -> None:
    config = emitted(tmp_path)["ensemble"]
    assert {tensor.name for tensor in config.input} == {*ENSEMBLE_INPUTS}
    assert {tensor.name for tensor in config.output} == {*ENSEMBLE_OUTPUTS}
    assert {tensor.name for tensor in config.input if not tensor.optional} == {"text_input", "max_tokens"}


PASSED = load_model("ensemble", make_pb_utils()).PASSED_INPUTS

# Inputs that the ensemble derives from texts, or sets if a request omits them.
MADE = {
    *("input_ids", "input_lengths", "end_id", "pad_id", "stop_words_list", "bad_words_list"),
    *("embedding_bias", "exclude_input_in_output"),
}
# Sent by clients that draft themselves; the ensemble leaves drafting to the engine.
DRAFTS_OF_A_CALLER = {
    *("draft_input_ids", "draft_logits", "draft_acceptance_threshold"),
    *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
    *("decoder_input_ids", "decoder_input_lengths"),
    "stop",  # ends a request with the same id; clients of texts disconnect instead
}


def test_ensemble_tensors_match_the_engine_model(tmp_path: Path) -> None:
    """Every tensor that is passed on exists in the model with the same type."""
    configs = emitted(tmp_path)
    ours, theirs = configs["ensemble"], configs["tensorrt_llm"]
    types = {tensor.name: tensor.data_type for tensor in theirs.input}
    handed = {PASSED[tensor.name]: tensor.data_type for tensor in ours.input if tensor.name in PASSED}
    assert {*types} - DRAFTS_OF_A_CALLER - {*OLDER_NAMES} == {*handed} | MADE
    assert handed.items() <= types.items()
    outputs = {tensor.name: tensor.data_type for tensor in theirs.output}
    told = {tensor.name: tensor.data_type for tensor in ours.output if tensor.name != "text_output"}
    assert told.items() <= outputs.items()
    assert {*outputs} - {*told} == {"output_ids", "continuation", "num_draft_steps", "accepted_by_position"}
    assert parameters(ours)["max_input_len"] == parameters(configs["preprocessing"])["max_input_len"] == "64"


def test_neutral_inputs_are_declared(tmp_path: Path) -> None:
    """The length penalty is len_penalty in tensorrt_llm and length_penalty in text-level models."""
    configs = emitted(tmp_path)
    declared = {tensor.name for model in ("tensorrt_llm", "ensemble") for tensor in configs[model].input}
    assert {*NEUTRAL_FIELDS} <= declared
