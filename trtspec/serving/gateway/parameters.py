# SPDX-License-Identifier: Apache-2.0
"""Request parameters: tables of names, types and ranges, request parsing, and the OpenAPI document.

The tables validate requests and generate the OpenAPI document. Extensions of OpenAI's API have vLLM's names because
benchmark clients send them. Unknown names are rejected, as in OpenAI's API, because a misspelled limit would otherwise
be ignored.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.engine.generation.request import MAX_GUIDE_BYTES, Constraint
from trtspec.engine.prompts.prompt import is_text
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.errors import ApiError, invalid_request, unsupported
from trtspec.serving.gateway.tools import CHOICE_SCHEMA, NAME_SCHEMA, TOOLS_SCHEMA, ToolOptions, read_tools
from trtspec.serving.triton.python_models.fields import json_preview

MAX_INT32 = 2**31 - 1
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_BIAS = 100
TOKEN_ID = re.compile(r"[0-9]{1,10}")
NUMBER, INTEGER, BOOLEAN = "number", "integer", "boolean"


@dataclass(frozen=True)
class Parameter:
    """The type, default and inclusive range of a scalar request parameter; null selects the default."""

    kind: str
    default: Any = None
    low: float | None = None
    high: float | None = None

    def read(self, name: str, value: Any) -> Any:
        """Return a validated value, or the default for None; raises ApiError if type or range are wrong."""
        if value is None:
            return self.default
        if not self._is_kind(value):
            article = "an" if self.kind == INTEGER else "a"
            raise invalid_request(
                f"{name} is {json_preview(value)}, expected {article} {self.kind}", name, "invalid_type"
            )
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise invalid_request(f"{name} is {json_preview(value)}, expected {self.low} to {self.high}", name)
        return value

    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": self.low, "maximum": self.high}
        return {"type": [self.kind, "null"], **{key: bound for key, bound in bounds.items() if bound is not None}}

    def _is_kind(self, value: Any) -> bool:
        if self.kind == BOOLEAN:
            return isinstance(value, bool)
        if isinstance(value, bool):
            return False
        return isinstance(value, int) or (self.kind == NUMBER and isinstance(value, float) and math.isfinite(value))


SHARED = {
    "temperature": Parameter(NUMBER, 1.0, 0, 2),
    "top_p": Parameter(NUMBER, 1.0, 0, 1),
    "top_k": Parameter(INTEGER, 0, -1, MAX_INT32),
    "presence_penalty": Parameter(NUMBER, 0.0, -2, 2),
    "frequency_penalty": Parameter(NUMBER, 0.0, -2, 2),
    "repetition_penalty": Parameter(NUMBER, 1.0, 0.01, 10),
    "min_tokens": Parameter(INTEGER, 0, 0, MAX_INT32),
    "seed": Parameter(INTEGER, None, -(2**63), 2**63 - 1),
    "n": Parameter(INTEGER, 1, 1, 128),
    "stream": Parameter(BOOLEAN, False),
    "ignore_eos": Parameter(BOOLEAN, False),
    "num_draft_tokens": Parameter(INTEGER, None, 0, MAX_INT32),  # trtspec's extension; 0 disables drafting
    "length_penalty": Parameter(NUMBER, 1.0),  # no effect without beam search, which is unsupported
}
COMPLETION = SHARED | {
    "add_special_tokens": Parameter(BOOLEAN, True),  # false if the prompt is a rendered chat template
    "max_tokens": Parameter(INTEGER, 16, 1, MAX_INT32),
    "logprobs": Parameter(INTEGER, None, 0, 5),
}
CHAT = SHARED | {
    "max_tokens": Parameter(INTEGER, None, 1, MAX_INT32),
    "max_completion_tokens": Parameter(INTEGER, None, 1, MAX_INT32),
    "logprobs": Parameter(BOOLEAN, False),
    "top_logprobs": Parameter(INTEGER, None, 0, 20),
}
# Accepted only with these no-op values; other values are rejected.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "min_p": (0,),
    "use_beam_search": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
# Names used by other APIs, mapped to this API's names.
FOREIGN_NAMES = {
    "random_seed": "seed",
    "min_length": "min_tokens",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "output_len": "max_tokens",
    "request_output_len": "max_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "streaming": "stream",
    "stop_words": "stop",
    "text_input": "prompt",
    "num_return_sequences": "n",
}
# Accepted and ignored: they do not affect the output.
IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
)
OF_CHATS = ("tools", "tool_choice", "parallel_tool_calls")  # the names above that chat requests may set
STRUCTURED = ("model", "stop", "stream_options", "logit_bias", "response_format")
ANY_OBJECT = Constraint("json_schema", '{"type":"object"}')
FORMAT_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class RequestParameters:
    """The parsed parameters of a request, without its prompt.

    Attributes:
        values: scalar parameters, by the names in CHAT or COMPLETION.
        max_tokens: maximum number of generated tokens, or None for as many as fit in the context.
        top_logprobs: number of alternatives per token, or None if no log probabilities are requested.
        logit_bias: values that are added to logits, by token id.
        constraint: the grammar of the text, or None; of the parameter `constraint_param`.
        tools: the tools that a chat may call, or None.
    """

    values: Mapping[str, Any]
    max_tokens: int | None
    stop: tuple[str, ...]
    top_logprobs: int | None
    include_usage: bool
    logit_bias: Mapping[int, float]
    constraint: Constraint | None = None
    constraint_param: str = "response_format"
    tools: ToolOptions | None = None
    given: frozenset[str] = frozenset()  # names present in the request with a non-null value

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_parameters(body: Mapping[str, Any], *, chat: bool) -> RequestParameters:
    """Parse the parameters of a request body; raises ApiError for the first invalid one."""
    table = CHAT if chat else COMPLETION
    _check_names(body, table, "messages" if chat else "prompt")
    for name, accepted in NEUTRAL.items():
        if not (chat and name in OF_CHATS) and body.get(name) is not None and body[name] not in accepted:
            raise unsupported(f"{name} {json_preview(body[name])}", name)
    values = {name: parameter.read(name, body.get(name)) for name, parameter in table.items()}
    max_tokens = values["max_tokens"]
    if values.get("max_completion_tokens") is not None:
        max_tokens = values["max_completion_tokens"]
    constraint, tools = _response_format(body.get("response_format")), read_tools(body) if chat else None
    if constraint is not None and tools is not None:
        message = "response_format cannot be combined with tools; set tool_choice to none or remove one of them"
        raise invalid_request(message, "response_format", "unsupported_parameter")
    return RequestParameters(
        values,
        max_tokens,
        _stops(body.get("stop")),
        _top_logprobs(values, chat),
        _include_usage(body),
        _logit_bias(body.get("logit_bias")),
        constraint,
        tools=tools,
        given=frozenset(name for name, value in body.items() if value is not None),
    )


def _check_names(body: Mapping[str, Any], table: Mapping[str, Parameter], text: str) -> None:
    known = {text, *STRUCTURED, *table, *NEUTRAL, *IGNORED}
    for name in body:
        if name not in known:
            near = FOREIGN_NAMES.get(name) or next(iter(difflib.get_close_matches(name[:64], known, 1)), None)
            hint = f"; did you mean {near}?" if near in known else ""
            raise invalid_request(
                f"Unrecognized request argument supplied: {json_preview(name)}{hint}", name[:64], "unknown_parameter"
            )


def _top_logprobs(values: Mapping[str, Any], chat: bool) -> int | None:
    if not chat:
        return values["logprobs"]  # type: ignore[no-any-return]
    if values["top_logprobs"] is not None and not values["logprobs"]:
        raise invalid_request("top_logprobs requires logprobs to be true", "top_logprobs")
    return (values["top_logprobs"] or 0) if values["logprobs"] else None


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if stops is None or stops == []:
        return ()
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(map(_is_stop, stops)):
        raise invalid_request(
            f"stop must be a string or up to {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters", "stop"
        )
    return tuple(dict.fromkeys(stops))


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid_request(
            "logit_bias must be an object that maps token ids to numbers", "logit_bias", "invalid_type"
        )
    number = Parameter(NUMBER, 0.0, -MAX_BIAS, MAX_BIAS)
    for key in value:
        if not TOKEN_ID.fullmatch(key):
            raise invalid_request(f"logit_bias has {json_preview(key)}, expected token ids as strings", "logit_bias")
    biases = {int(key): number.read("logit_bias", bias) for key, bias in value.items()}
    return {token: float(bias) for token, bias in biases.items() if bias}


def _response_format(value: Any) -> Constraint | None:
    """Return the grammar of a response format, None for text."""
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        expected = "an object whose type is text, json_object or json_schema"
        raise invalid_request(f"response_format is {json_preview(value)}, expected {expected}", "response_format")
    param = "response_format.json_schema"
    described = value.get("json_schema")
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise invalid_request(f"{param} must be an object with a name and a schema", param)
    name = described.get("name")
    if not isinstance(name, str) or not FORMAT_NAME.fullmatch(name):
        message = f"{param}.name is {json_preview(name)}, expected 1 to 64 letters, digits, underscores or dashes"
        raise invalid_request(message, f"{param}.name")
    Parameter(BOOLEAN, False).read(f"{param}.strict", described.get("strict"))
    try:
        schema = json.dumps(described["schema"])
    except RecursionError:
        raise invalid_request(f"{param}.schema is nested too deeply", f"{param}.schema") from None
    if len(schema) > MAX_GUIDE_BYTES:
        message = f"{param}.schema has {len(schema):,} bytes, expected at most {MAX_GUIDE_BYTES:,}"
        raise invalid_request(message, f"{param}.schema")
    return Constraint("json_schema", schema)


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_STOP_CHARS and is_text(value)


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid_request("stream_options must be an object", "stream_options", "invalid_type")
    if not body.get("stream"):
        raise invalid_request("stream_options requires stream to be true", "stream_options")
    return bool(Parameter(BOOLEAN, False).read("stream_options.include_usage", options.get("include_usage")))


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Raise ApiError unless the request's `model` is the served model."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid_request("you must provide a model parameter", "model", "missing_required_parameter")
    if model != served:
        raise model_not_found(model)


def model_not_found(model: str) -> ApiError:
    return ApiError(404, f"The model {json_preview(model)} does not exist", param="model", code="model_not_found")


STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
BIAS = {
    "type": ["object", "null"],
    "propertyNames": {"pattern": f"^{TOKEN_ID.pattern}$"},
    "additionalProperties": Parameter(NUMBER, 0.0, -MAX_BIAS, MAX_BIAS).schema(),
}
RESPONSE_FORMAT = {
    "type": ["object", "null"],
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "json_schema": {
            "type": "object",
            "required": ["name", "schema"],
            "properties": {
                "name": {"type": "string", "pattern": f"^{FORMAT_NAME.pattern}$"},
                "description": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        },
    },
}
PROMPT = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}},
    ]
}
TOOL_CALLS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["id", "type", "function"],
        "properties": {
            "id": {"type": "string"},
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name", "arguments"],
                "properties": {"name": NAME_SCHEMA, "arguments": {"type": "string"}},
            },
        },
    },
}


def _message(role: dict[str, Any], required: list[str], **properties: Any) -> dict[str, Any]:
    known = {"role": role, "content": {"type": "string"}, "name": {"type": "string"}}
    return {"type": "object", "required": ["role", *required], "properties": known | properties}


MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "oneOf": [
            _message({"enum": ["system", "developer", "user"]}, ["content"]),
            _message({"const": "assistant"}, ["content"]),
            _message({"const": "assistant"}, ["tool_calls"], content={"type": "null"}, tool_calls=TOOL_CALLS),
            _message({"const": "tool"}, ["content", "tool_call_id"], tool_call_id={"type": "string"}),
        ]
    },
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
TOOLS = {"tools": TOOLS_SCHEMA, "tool_choice": CHOICE_SCHEMA, "parallel_tool_calls": {"type": ["boolean", "null"]}}
FAILS = (400, 401, 403, 404, 408, 413, 415, 421, 429, 500, 503, 504)


def describe(config: GatewayConfig, version: str) -> dict[str, Any]:
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "trtspec", "version": version},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            "/v1/completions": {"post": _post(_body(config, COMPLETION, {"prompt": PROMPT}))},
            "/v1/chat/completions": {"post": _post(_body(config, CHAT, {"messages": MESSAGES}, TOOLS))},
            "/v1/models": {"get": _get()},
            "/v1/models/{model}": {"get": {**_get(404), "parameters": [model]}},
            "/health": {"get": _get(503)},
            "/version": {"get": _get()},
            "/metrics": {"get": _get(kind="text/plain")},
        },
    }


def _body(
    config: GatewayConfig,
    table: Mapping[str, Parameter],
    text: Mapping[str, Any],
    tools: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    neutral = {name: {"enum": [*values, None]} for name, values in NEUTRAL.items()}
    properties = {
        "model": {"const": config.model},
        **text,
        **{name: parameter.schema() for name, parameter in table.items()},
        **neutral,
        **{name: {} for name in IGNORED},
        **(tools or {}),
        "stop": {"oneOf": [{"type": "null"}, STOP, {"type": "array", "items": STOP, "maxItems": MAX_STOPS}]},
        "logit_bias": BIAS,
        "response_format": RESPONSE_FORMAT,
        "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean"}}},
    }
    return {"type": "object", "required": ["model", *text], "properties": properties, "additionalProperties": False}


def _post(body: Mapping[str, Any]) -> dict[str, Any]:
    streams: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
    return {
        "security": [{"key": []}, {}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "the answer", "content": streams}, **_errors(*FAILS)},
    }


def _get(*fails: int, kind: str = "application/json") -> dict[str, Any]:
    return {"responses": {"200": {"description": "the answer", "content": {kind: {}}}, **_errors(401, 429, *fails)}}


def _errors(*statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": ERROR}}
    return {str(status): {"description": "an error", "content": content} for status in sorted(statuses)}
