# SPDX-License-Identifier: Apache-2.0
"""The emitted repository: what it says, that it can be moved, and that the models fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton.artifact import ENGINE, SERVING, emit_repository
from trtspec.backends.embedded.repository import MODELS
from trtspec.paths import model_repository_dir
from trtspec.triton.config import load_config, render_config
from trtspec.triton.python_models.tensors import NEUTRAL

# Names of NVIDIA's inflight_batcher_llm repository that clients send and read.
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
]


def emitted(root: Path, has_draft: bool = True, **changes):
    emit_repository(root, replace(SERVING, **changes), has_draft=has_draft)
    return {model: load_config(root / model / "config.pbtxt") for model in MODELS}


def parameters(config) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def test_the_values_of_the_recipe_are_in_their_fields(tmp_path: Path) -> None:
    configs = emitted(tmp_path, max_batch_size=3, max_queue_size=9, max_queue_delay_us=77)
    assert all(config.max_batch_size == 3 for config in configs.values())
    model = configs["tensorrt_llm"]
    assert model.model_transaction_policy.decoupled
    assert model.dynamic_batching.max_queue_delay_microseconds == 77
    assert model.dynamic_batching.default_queue_policy.max_queue_size == 9
    assert parameters(model) == {
        "gpt_model_path": "../../checkpoints/target",
        "draft_model_path": "../../checkpoints/draft",
        "tokenizer_dir": "../../tokenizer",
        "engine_settings": ENGINE.as_json(),
    }


def test_without_streaming_nothing_is_decoupled_and_without_a_draft_there_is_no_path(tmp_path: Path) -> None:
    configs = emitted(tmp_path, streaming=False, has_draft=False)
    assert not configs["ensemble"].model_transaction_policy.decoupled
    assert not configs["tensorrt_llm"].model_transaction_policy.decoupled
    assert parameters(configs["tensorrt_llm"])["draft_model_path"] == ""


def test_emission_is_the_same_every_time_and_free_of_placeholders_and_machine_paths(tmp_path: Path) -> None:
    emitted(tmp_path / "a")
    emitted(tmp_path / "b")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [str(path) for path in files if path.name == "model.py"] == [
        f"{model}/1/model.py" for model in ("postprocessing", "preprocessing", "tensorrt_llm")
    ]
    assert (tmp_path / "a" / "ensemble" / "1").is_dir()
    for path in files:
        content = (tmp_path / "a" / path).read_bytes()
        assert content == (tmp_path / "b" / path).read_bytes()
        assert b"${" not in content
        assert str(tmp_path).encode() not in content


@pytest.mark.parametrize("model", MODELS)
def test_the_hand_written_models_parse_and_render(model: str) -> None:
    config = load_config(model_repository_dir() / model / "config.pbtxt")
    assert config.name == model
    names = [tensor.name for tensor in [*config.input, *config.output]]
    assert all(tensor.dims for tensor in [*config.input, *config.output])
    assert len({*names}) == len(names) or model == "preprocessing"  # REQUEST_OUTPUT_LEN goes in and out
    assert render_config(config)


def test_the_ensemble_takes_and_gives_what_clients_know(tmp_path: Path) -> None:
    config = emitted(tmp_path)["ensemble"]
    assert {tensor.name for tensor in config.input} == {*ENSEMBLE_INPUTS}
    assert {tensor.name for tensor in config.output} == {*ENSEMBLE_OUTPUTS}
    assert {tensor.name for tensor in config.input if not tensor.optional} == {"text_input", "max_tokens"}


# Sent by who drafts and has another model verify; the ensemble leaves drafting to the engine.
DRAFTS_OF_A_CALLER = {
    *("draft_input_ids", "draft_logits", "draft_acceptance_threshold"),
    *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
}


def test_the_steps_of_the_ensemble_fit_the_models(tmp_path: Path) -> None:
    """Every tensor that is mapped exists, and both of its ends have the same type."""
    configs = emitted(tmp_path)
    types = {tensor.name: tensor.data_type for tensor in [*configs["ensemble"].input, *configs["ensemble"].output]}
    for step in configs["ensemble"].ensemble_scheduling.step:
        model = configs[step.model_name]
        unmapped = DRAFTS_OF_A_CALLER if step.model_name == "tensorrt_llm" else set()
        assert {tensor.name for tensor in model.input} - unmapped == {*step.input_map}
        assert {tensor.name for tensor in model.output} == {*step.output_map}
        for tensors, mapped in ((model.input, step.input_map), (model.output, step.output_map)):
            for tensor in (each for each in tensors if each.name not in unmapped):
                outer = mapped[tensor.name]
                assert types.setdefault(outer, tensor.data_type) == tensor.data_type, (step.model_name, tensor.name)


def test_every_neutral_input_is_declared(tmp_path: Path) -> None:
    """The penalty on length is called len_penalty by tensorrt_llm, and length_penalty where texts are taken."""
    configs = emitted(tmp_path)
    declared = {tensor.name for model in ("tensorrt_llm", "ensemble") for tensor in configs[model].input}
    assert {*NEUTRAL} <= declared
