# SPDX-License-Identifier: Apache-2.0
"""The gateway's OpenAPI document, generated from the parameter tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.parameters import (
    CHAT,
    COMPLETION,
    IGNORED,
    MAX_BIAS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    NEUTRAL,
    NUMBER,
    TOKEN_ID,
    Parameter,
)

STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
BIAS = {
    "type": ["object", "null"],
    "propertyNames": {"pattern": f"^{TOKEN_ID.pattern}$"},
    "additionalProperties": Parameter(NUMBER, 0.0, -MAX_BIAS, MAX_BIAS).schema(),
}
PROMPT = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}},
    ]
}
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {"type": "string"},
            "name": {"type": "string"},
        },
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
FAILS = (400, 401, 403, 404, 408, 413, 415, 421, 429, 500, 503, 504)


def describe(config: GatewayConfig, version: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    text = {"prompt": PROMPT}, {"messages": MESSAGES}
    return {
        "openapi": "3.1.0",
        "info": {"title": "trtspec", "version": version},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            "/v1/completions": {"post": _post(_body(config, COMPLETION, text[0]))},
            "/v1/chat/completions": {"post": _post(_body(config, CHAT, text[1]))},
            "/v1/models": {"get": _get()},
            "/v1/models/{model}": {"get": {**_get(404), "parameters": [_MODEL]}},
            "/health": {"get": _get(503)},
            "/version": {"get": _get()},
            "/metrics": {"get": _get(kind="text/plain")},
        },
    }


_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}


def _body(config: GatewayConfig, table: Mapping[str, Parameter], text: Mapping[str, Any]) -> dict[str, Any]:
    neutral = {name: {"enum": [*values, None]} for name, values in NEUTRAL.items()}
    properties = {
        "model": {"const": config.model},
        **text,
        **{name: parameter.schema() for name, parameter in table.items()},
        **neutral,
        **{name: {} for name in IGNORED},
        "stop": {"oneOf": [{"type": "null"}, STOP, {"type": "array", "items": STOP, "maxItems": MAX_STOPS}]},
        "logit_bias": BIAS,
        "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean"}}},
    }
    return {
        "type": "object",
        "required": ["model", *text],
        "properties": properties,
        "additionalProperties": False,
    }


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
