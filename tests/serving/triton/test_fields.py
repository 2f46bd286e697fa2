# SPDX-License-Identifier: Apache-2.0
"""Names of request fields: older names are mapped, unknown ones are rejected with the closest name."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from tests.serving.triton.fakes import Request, make_pb_utils
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.nvidia_compat import INPUTS, unsupported_inputs
from trtspec.serving.triton.python_models.fields import NEUTRAL, OLDER_NAMES, check_field_names, rename_fields
from trtspec.serving.triton.python_models.tensors import (
    HeldTensors,
    RequestTensors,
    check_unsupported,
    check_unsupported_inputs,
)

TEXT_INPUTS = [
    "text_input",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "min_tokens",
    "stop_words",
    "stream",
]
SEED = np.array([[7]], np.uint64)


def tensors(sent: dict[str, Any] | None = None, **inputs: Any) -> RequestTensors:
    return RequestTensors(make_pb_utils(), Request(sent=sent, **inputs))


def refusal(inputs: RequestTensors, name: str) -> str:
    with pytest.raises(TrtspecError) as error, inputs.naming():
        inputs.scalar(name)
    return error.value.message


@pytest.mark.parametrize(
    ("older", "name", "value"),
    [
        ("random_seed", "seed", 7),
        ("min_length", "min_tokens", 7),
        ("return_kv_cache_reuse_stats", "return_perf_metrics", True),
    ],
)
def test_legacy_field_name_is_accepted_as_parameter_and_tensor(older: str, name: str, value: Any) -> None:
    assert OLDER_NAMES[name][0] == older
    assert tensors({older: value}).scalar(name) == value
    assert tensors(**{older: np.array([[value]], OLDER_NAMES[name][1])}).scalar(name) == value
    both = tensors({older: value}, **{name: np.array([[value]], OLDER_NAMES[name][1])})
    assert both.scalar(name) == value, "both names with the same value"
    assert HeldTensors(tensors({older: value}), [name]).scalar(name) == value
    assert HeldTensors(tensors(**{older: np.array([[value]])}), [name, older]).scalar(name) == value


@pytest.mark.parametrize("sent", [{"sent": {"random_seed": 8}}, {"random_seed": np.array([[8]], np.uint64)}])
def test_conflicting_values_of_two_field_names_are_rejected(sent: dict[str, Any]) -> None:
    said = refusal(tensors(seed=SEED, **sent), "seed")
    assert said == "seed is 7 and random_seed is 8: they are the same field"


@pytest.mark.parametrize("value", [-1, 1.5, 2**64, 1e30, True, "7", ""])
def test_legacy_field_with_invalid_value_is_rejected_by_its_name(value: Any) -> None:
    assert refusal(tensors({"random_seed": value}), "seed").startswith("random_seed is ")


def test_integer_field_accepts_a_whole_double() -> None:
    assert tensors({"min_length": 3.0}).scalar("min_tokens") == 3


def test_error_uses_the_field_names_of_the_request() -> None:
    inputs = tensors({"min_length": -4})
    with pytest.raises(TrtspecError) as error, inputs.naming({"max_tokens": "request_output_len"}):
        raise TrtspecError("min_tokens is -4 and max_tokens 0, expected 0 or more")
    assert error.value.message == "min_length is -4 and request_output_len 0, expected 0 or more"
    assert rename_fields('max_tokens, "max_tokens", engine.max_tokens, max_tokens_2', {"max_tokens": "x"}) == (
        'x, "max_tokens", engine.max_tokens, max_tokens_2'
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tempreature", "did you mean temperature?"),
        ("max_token", "did you mean max_tokens?"),
        ("request_output_len", "did you mean max_tokens?"),
        ("output_len", "did you mean max_tokens?"),
        ("max_new_tokens", "did you mean max_tokens?"),
        ("runtime_top_k", "did you mean top_k?"),
        ("streaming", "did you mean stream?"),
        ("stop", "did you mean stop_words?"),
        ("radnom_seed", "did you mean random_seed?"),
        ("ignore_eos", "to continue after the end token, send end_id -1"),
        ("x" * 10_000, "leave it out; the model's configuration lists its inputs"),
        ("Temperature", "did you mean temperature?"),
        ("", "leave it out; the model's configuration lists its inputs"),
        ("é\n'", "leave it out; the model's configuration lists its inputs"),
    ],
)
def test_unknown_field_is_rejected_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(TrtspecError, match="unknown field") as error:
        check_field_names({name: 1}, TEXT_INPUTS, "the engine")
    assert error.value.hint == hint
    assert error.value.message.isascii()
    assert len(error.value.message) < 100


@pytest.mark.parametrize(
    "sent",
    [
        # vllm bench serve, sglang's bench_serving, genai-perf, and Triton's own protocol
        {"accumulate_tokens": True, "min_length": 40},
        {"model": "ensemble", "id": "7", "priority": 1, "timeout": 1000, "sequence_id": 3, "binary_data_output": True},
        {"triton_enable_empty_final_response": True, "trtspec_client": "0" * 32},
        {"length_penalty": 0.8},
        {"len_penalty": -2.5},
        {"early_stopping": True, "beam_search_diversity_rate": 0.0, "prompt_vocab_size": 0, "decoder_text_input": ""},
    ],
)
def test_client_fields_without_effect_are_accepted(sent: dict[str, Any]) -> None:
    check_field_names(sent, TEXT_INPUTS, "the engine")


@pytest.mark.parametrize(
    "name", sorted({name for model in INPUTS for name in unsupported_inputs(model)} - {"early_stopping"})
)
def test_unsupported_nvidia_inputs_are_rejected_unless_neutral(name: str) -> None:
    with pytest.raises(TrtspecError, match=f"{name} 3 is not supported by the engine"):
        check_field_names({name: 3}, TEXT_INPUTS, "the engine")
    for value in NEUTRAL.get(name, ("",)):
        check_field_names({name: value}, TEXT_INPUTS, "the engine")


@pytest.mark.parametrize("name", ["length_penalty", "len_penalty"])
def test_length_penalty_with_one_beam_is_accepted(name: str) -> None:
    inputs = tensors(**{name: 0.8, "beam_width": 1})
    check_unsupported(inputs, "the engine")
    check_unsupported_inputs(inputs, [], "the engine")
    with pytest.raises(TrtspecError, match="beam_width 2 is not supported"):
        check_unsupported(tensors(**{name: 0.8, "beam_width": 2}), "the engine")


def test_request_object_without_parameters_is_read() -> None:
    class Old:
        inputs: ClassVar[dict[str, Any]] = {"seed": SEED}

    assert RequestTensors(make_pb_utils(), Old()).scalar("seed") == 7
