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


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
OTHER = {"type": "function", "function": {"name": "g-2", "description": "g"}}
CHOSEN = {"type": "function", "function": {"name": "g-2"}}


def test_completions_reject_tools_by_name() -> None:
    assert "tools" in refused({"prompt": "x", "tools": [TOOL]})["message"]
    assert "tool_choice" in refused({"prompt": "x", "tool_choice": "required"})["message"]


def test_chats_without_callable_tools_have_no_tool_options() -> None:
    for body in ({"tools": []}, {"tool_choice": "auto"}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": None}):
        assert read_parameters({"messages": [], **body}, chat=True).tools is None


@pytest.mark.parametrize(
    ("body", "names", "must_call", "parallel"),
    [
        ({}, {"f", "g-2"}, False, True),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, {"f", "g-2"}, False, False),
        ({"tool_choice": "required"}, {"f", "g-2"}, True, True),
        ({"tool_choice": CHOSEN}, {"g-2"}, True, False),
    ],
)
def test_tool_choice_selects_the_callable_tools(
    body: dict[str, Any], names: set[str], must_call: bool, parallel: bool
) -> None:
    tools = read_parameters({"messages": [], "tools": [TOOL, OTHER], **body}, chat=True).tools
    assert tools is not None
    assert (tools.names, tools.must_call, tools.parallel) == (names, must_call, parallel)
    assert [tool.document for tool in tools.tools] == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g-2", "description": "g",
                                          "parameters": {"type": "object", "properties": {}}}},
    ]  # fmt: skip


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def deep(depth: int) -> dict[str, Any]:
    return {"not": deep(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tools": {}}, "tools must be a list of at most 128 functions"),
        ({"tools": [TOOL] * 129}, "tools must be a list of at most 128 functions"),
        ({"tools": [TOOL, TOOL]}, "tools.1.function.name f occurs twice"),
        ({"tools": [3]}, "tools.0 must be an object with the type function and a function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, 'tools.0.type "custom" is not supported by this server'),
        ({"tools": function(name="a b")}, 'tools.0.function.name is "a b", expected 1 to 64 letters'),
        ({"tools": function(parameters=[])}, "tools.0.function.parameters must be a JSON schema"),
        ({"tools": function(description=1)}, "tools.0.function.description must be text"),
        ({"tools": function(strict="yes")}, "tools.0.function.strict must be a boolean"),
        ({"tools": function(cache=True)}, 'tools.0 has the unknown field "cache"'),
        ({"tools": function(description="\ud800")}, "tools have an unpaired surrogate"),
        ({"tools": function(description="x" * (1 << 17))}, "bytes, expected at most 131,072"),
        ({"tools": function(parameters=deep(40))}, "tools are nested more than 32 deep"),
        ({"tools": function(parameters=deep(900))}, "tools are nested more than 32 deep"),
        ({"tool_choice": "required"}, "tool_choice requires tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, 'tool_choice is "any", expected none, auto, required or'),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice is {"),
        ({"tools": [TOOL], "tool_choice": CHOSEN}, 'tool_choice names "g-2", which is not in tools'),
        ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls is 1, expected a boolean"),
        (
            {"tools": [TOOL], "response_format": {"type": "json_object"}},
            "response_format cannot be combined with tools",
        ),
    ],
)
def test_invalid_tools_are_rejected_with_their_position(body: dict[str, Any], message: str) -> None:
    assert message in refused({"messages": [], **body}, chat=True)["message"]


def test_required_calls_have_the_schemas_of_their_tools() -> None:
    """References of a tool's schema to itself are read within the schema; values that look like references stay."""
    definitions = {"a": {"$ref": "#"}, "enum": {"$ref": "#/b"}}
    values = {"const": {"$ref": "#/b"}, "allOf": [{"$ref": "http://x#/b"}]}
    parameters = {"$schema": "x", "$id": "y", "$ref": "#/$defs/a", "$defs": definitions, **values}
    tool = {"type": "function", "function": {"name": "h", "parameters": parameters}}
    body = {"messages": [], "tools": [TOOL, tool], "tool_choice": "required", "parallel_tool_calls": False}
    tools = read_parameters(body, chat=True).tools
    assert tools is not None
    constraint = tools.constraint("parameters")
    assert constraint.guide_type == "json_schema"
    schema = json.loads(constraint.guide)
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    assert [each["properties"]["name"]["const"] for each in schema["items"]["anyOf"]] == ["f", "h"]
    assert schema["items"]["anyOf"][1]["properties"]["parameters"] == {"$ref": "#/$defs/t1"}
    moved = {"a": {"$ref": "#/$defs/t1"}, "enum": {"$ref": "#/$defs/t1/b"}}
    assert schema["$defs"]["t1"] == {"$ref": "#/$defs/t1/$defs/a", "$defs": moved, **values}


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
