# SPDX-License-Identifier: Apache-2.0
"""Validation of request parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtspec.engine.generation.request import Constraint
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.parameters import check_model, read_parameters


def refused(body: dict[str, Any], *, chat: bool = False) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        read_parameters(body, chat=chat)
    assert caught.value.status == 400
    error: dict[str, Any] = json.loads(caught.value.body)["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_defaults_match_openai() -> None:
    asked = read_parameters({"prompt": "x"}, chat=False)
    assert (asked["temperature"], asked["top_p"], asked["n"], asked.max_tokens) == (1.0, 1.0, 1, 16)
    assert (asked.stop, asked.top_logprobs, asked.include_usage, asked["stream"]) == ((), None, False, False)
    assert read_parameters({"messages": []}, chat=True).max_tokens is None
    nulls = read_parameters(
        {"prompt": "x", "temperature": None, "stop": None, "n": None, "max_tokens": None}, chat=False
    )
    assert nulls == asked


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": 10**400}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 1.0}, "n", "invalid_type"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": "\ud800"}, "stop", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": 3}, "stream_options", "invalid_type"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"logit_bias": [5]}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"5": "1"}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-5": 1}}, "logit_bias", "invalid_value"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"max_token": 3}, "max_token", "unknown_parameter"),
    ],
)
def test_invalid_parameter_error_names_the_parameter(body: dict[str, Any], param: str, code: str) -> None:
    error = refused({"prompt": "x", **body})
    assert (error["param"], error["code"]) == (param, code)
    assert param.split(".", maxsplit=1)[0] in error["message"]


def test_unsupported_tools_are_rejected_by_name() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert "tools" in refused({"messages": [], "tools": [tool]}, chat=True)["message"]
    read_parameters({"messages": [], "tools": [], "tool_choice": "none"}, chat=True)


@pytest.mark.parametrize("chat", [True, False])
def test_response_formats_become_grammars(chat: bool) -> None:
    def constraint(form: Any) -> Constraint | None:
        text: dict[str, Any] = {"messages": []} if chat else {"prompt": "x"}
        return read_parameters({**text, "response_format": form}, chat=chat).constraint

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"type": "json_schema", "json_schema": {"name": "a-1", "schema": schema, "strict": True}}
    assert constraint(None) is None
    assert constraint({"type": "text"}) is None
    assert constraint({"type": "json_object"}) == Constraint("json_schema", '{"type":"object"}')
    assert constraint(named) == Constraint("json_schema", json.dumps(schema))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("json", 'response_format is "json", expected an object whose type is text, json_object or json_schema'),
        ({"type": "xml"}, 'response_format is {"type": "xml"}, expected'),
        ({"type": "json_schema"}, "response_format.json_schema must be an object with a name and a schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name is null, expected"),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}},
            "response_format.json_schema.strict is 1, expected a boolean",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"title": "x" * (1 << 17)}}},
            "response_format.json_schema.schema has 131,085 bytes, expected at most 131,072",
        ),
    ],
)
def test_invalid_response_formats_are_rejected(form: Any, message: str) -> None:
    assert message in refused({"messages": [], "response_format": form}, chat=True)["message"]


def test_metadata_parameters_are_accepted_but_misspelled_ones_rejected() -> None:
    read_parameters({"prompt": "x", "user": "me", "metadata": {"a": "b"}, "store": False}, chat=False)
    assert "did you mean temperature?" in refused({"prompt": "x", "temprature": 1})["message"]
    assert refused({"messages": [], "prompt": "x"}, chat=True)["param"] == "prompt"


def test_logit_bias_is_parsed_by_token_id_without_zero_entries() -> None:
    asked = read_parameters({"prompt": "x", "logit_bias": {"5": 1, "007": -2.5, "9": 0}}, chat=False)
    assert asked.logit_bias == {5: 1.0, 7: -2.5}
    assert read_parameters({"prompt": "x", "logit_bias": {}}, chat=False).logit_bias == {}


def test_logprobs_syntax_differs_between_completions_and_chat() -> None:
    assert read_parameters({"prompt": "x", "logprobs": 0}, chat=False).top_logprobs == 0
    assert read_parameters({"messages": [], "logprobs": True, "top_logprobs": 3}, chat=True).top_logprobs == 3
    assert read_parameters({"messages": [], "logprobs": False}, chat=True).top_logprobs is None
    assert refused({"messages": [], "top_logprobs": 3}, chat=True)["param"] == "top_logprobs"


def test_max_completion_tokens_overrides_max_tokens() -> None:
    asked = read_parameters({"messages": [], "max_tokens": 3, "max_completion_tokens": 5}, chat=True)
    assert asked.max_tokens == 5


def test_missing_model_gives_400_and_unknown_model_404() -> None:
    check_model({"model": "m"}, "m")
    with pytest.raises(ApiError, match="you must provide a model") as missing:
        check_model({}, "m")
    with pytest.raises(ApiError, match='"x" does not exist') as other:
        check_model({"model": "x"}, "m")
    assert (missing.value.status, other.value.status) == (400, 404)


def test_error_message_contains_no_server_paths() -> None:
    error = ApiError(400, "artifact/tokenizer: /srv/models/x/config.pbtxt: wrong and/or /v1 too")
    assert error.message == "artifact/tokenizer: [...]: wrong and/or /v1 too"
