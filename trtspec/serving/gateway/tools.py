# SPDX-License-Identifier: Apache-2.0
"""`tools`, `tool_choice` and `parallel_tool_calls` of chat requests: validation, and the grammar of required calls.

Everything in a tool comes from the client. Number, size and nesting are limited here; the engine tries the grammar of
the tools' parameters as it tries every guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.checkpoints.safe_json import MAX_DEPTH, is_shallow
from trtspec.engine.generation.request import MAX_GUIDE_BYTES, Constraint
from trtspec.engine.prompts.prompt import is_text
from trtspec.serving.gateway.errors import invalid_request, unsupported
from trtspec.serving.triton.python_models.fields import json_preview

MAX_TOOLS = 128
MAX_TOOLS_BYTES = MAX_GUIDE_BYTES
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NONE, AUTO, REQUIRED = "none", "auto", "required"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
FUNCTION_KEYS = ("name", "description", "parameters", "strict")
# Keywords of JSON schema whose values are not schemas, and those whose values are schemas by arbitrary names.
VALUES = frozenset({"const", "enum", "default", "examples"})
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it, which is OpenAI's format."""
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.parameters}}


@dataclass(frozen=True)
class ToolOptions:
    """The tools that a request may call.

    `must_call` means that the text is a call, of a tool in `callable_tools`. `parallel` allows several calls.
    """

    tools: tuple[Tool, ...]
    callable_tools: tuple[Tool, ...]
    must_call: bool
    parallel: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable_tools)

    def constraint(self, arguments_key: str) -> Constraint:
        """Return the grammar of a list of calls, each an object with `name` and `arguments_key`.

        Each tool's schema becomes a definition, and the references in the schema are changed accordingly.
        """
        calls, definitions = [], {}
        for number, tool in enumerate(self.callable_tools):
            definitions[f"t{number}"] = _moved(tool.parameters, f"#/$defs/t{number}")
            properties = {"name": {"const": tool.name}, arguments_key: {"$ref": f"#/$defs/t{number}"}}
            calls.append({"type": "object", "properties": properties, "required": ["name", arguments_key],
                          "additionalProperties": False})  # fmt: skip
        several = {} if self.parallel else {"maxItems": 1}
        schema = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **several, "$defs": definitions}
        return Constraint("json_schema", json.dumps(schema))


def read_tools(body: Mapping[str, Any]) -> ToolOptions | None:
    """Return the tools that a chat request may call, None without any; raises ApiError for the first invalid field."""
    tools = tuple(_tools(body.get("tools")))
    choice, parallel = body.get("tool_choice"), body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        message = f"parallel_tool_calls is {json_preview(parallel)}, expected a boolean"
        raise invalid_request(message, "parallel_tool_calls", "invalid_type")
    named = _named(choice, tools)
    if choice == REQUIRED and not tools:
        raise invalid_request("tool_choice requires tools", "tool_choice")
    if not tools or choice == NONE:
        return None
    must_call = named is not None or choice == REQUIRED
    return ToolOptions(tools, tools if named is None else (named,), must_call, parallel is not False and named is None)


def _tools(value: Any) -> Iterator[Tool]:
    if value is None or value == []:
        return
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise invalid_request(f"tools must be a list of at most {MAX_TOOLS} functions", "tools")
    if not is_shallow(value):
        raise invalid_request(f"tools are nested more than {MAX_DEPTH} deep", "tools")
    text = json.dumps(value, ensure_ascii=False)
    if not is_text(text):
        raise invalid_request("tools have an unpaired surrogate", "tools")
    if len(text.encode()) > MAX_TOOLS_BYTES:
        raise invalid_request(f"tools have {len(text.encode()):,} bytes, expected at most {MAX_TOOLS_BYTES:,}", "tools")
    seen: set[str] = set()
    for number, each in enumerate(value):
        tool = _tool(each, f"tools.{number}")
        if tool.name in seen:
            raise invalid_request(f"tools.{number}.function.name {tool.name} occurs twice", "tools")
        seen.add(tool.name)
        yield tool


def _tool(value: Any, where: str) -> Tool:
    if not isinstance(value, dict) or not isinstance(value.get("function"), dict):
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise unsupported(f"{where}.type {json_preview(kind)}", where)
        raise invalid_request(f"{where} must be an object with the type function and a function", where)
    function = value["function"]
    if value.get("type", "function") != "function":
        raise unsupported(f"{where}.type {json_preview(value['type'])}", where)
    for unknown in (*(value.keys() - {"type", "function"}), *(function.keys() - {*FUNCTION_KEYS})):
        raise invalid_request(f"{where} has the unknown field {json_preview(unknown)}", where, "unknown_parameter")
    name, description, parameters = (function.get(key) for key in FUNCTION_KEYS[:3])
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        expected = "1 to 64 letters, digits, underscores or dashes"
        raise invalid_request(f"{where}.function.name is {json_preview(name)}, expected {expected}", where)
    if not isinstance(description, str | None):
        raise invalid_request(f"{where}.function.description must be text", where, "invalid_type")
    if not isinstance(parameters, dict | None):
        raise invalid_request(f"{where}.function.parameters must be a JSON schema", where, "invalid_type")
    if not isinstance(function.get("strict"), bool | None):
        raise invalid_request(f"{where}.function.strict must be a boolean", where, "invalid_type")
    return Tool(name, description or "", parameters or NO_PARAMETERS)


def _named(choice: Any, tools: tuple[Tool, ...]) -> Tool | None:
    """Return the tool that `tool_choice` names, None if it names none."""
    if choice is None or choice in (NONE, AUTO, REQUIRED):
        return None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        expected = f'{NONE}, {AUTO}, {REQUIRED} or {{"type": "function", "function": {{"name": ...}}}}'
        raise invalid_request(f"tool_choice is {json_preview(choice)}, expected {expected}", "tool_choice")
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise invalid_request(f"tool_choice names {json_preview(name)}, which is not in tools", "tool_choice")
    return found


def _moved(schema: Any, root: str) -> Any:
    """Return a schema that is read below `root` of another one: its references to itself begin with `root`."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            found[key] = root + value[1:]
        elif key in BY_NAME and isinstance(value, dict):
            found[key] = {name: _moved(each, root) for name, each in value.items()}
        elif key not in ("$schema", "$id"):
            found[key] = value if key in VALUES else _moved(value, root)
    return found


NAME_SCHEMA = {"type": "string", "pattern": f"^{FUNCTION_NAME.pattern}$"}
TOOLS_SCHEMA = {
    "type": ["array", "null"],
    "maxItems": MAX_TOOLS,
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": NAME_SCHEMA,
                    "description": {"type": "string"},
                    "parameters": {"type": "object"},
                    "strict": {"type": ["boolean", "null"]},
                },
            },
        },
    },
}
CHOICE_SCHEMA = {
    "oneOf": [
        {"enum": [NONE, AUTO, REQUIRED, None]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": NAME_SCHEMA}},
            },
        },
    ]
}
