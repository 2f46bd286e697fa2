# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of pydantic models as Markdown: sections, and rows of keys with type, default and description."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from docs.site.markdown import code, escape
from trtspec.recipe.schema import PATTERN_DESCRIPTIONS

Schema = dict[str, Any]
Refer = Callable[[str, str], str]  # from a key and the name of its object to a link
Row = tuple[str, str, str, str]
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "exclusiveMaximum": "less than"}
TECHNICAL = 10**12  # bounds from here on only keep damaged files out
NAMES = {"boolean": "true or false", "object": "mapping", "string": "text"}


def described(schema: Schema) -> str:
    """Return the description of a schema as a paragraph."""
    text = schema.get("description", "")
    return f"{escape(text)}\n\n" if text else ""


def schema_objects(schema: Schema, path: str = "", root: Schema | None = None) -> Iterator[tuple[str, Schema]]:
    """Yield (dotted path, schema) of a schema and of all objects below it; `*` stands for the items of a list."""
    root = root or schema
    yield path, schema
    for key, value in schema["properties"].items():
        place = f"{path}.{key}" if path else key
        for part in _alternatives(value):
            item = part.get("items", {})
            for name, found in ((place, part), (f"{place}.*", item)):
                if "$ref" in found:
                    yield from schema_objects(root["$defs"][_name(found)], name, root)


def schema_rows(schema: Schema, refer: Refer, prefix: str = "") -> list[Row]:
    """Return (key, type, default, description) of each key of an object."""
    required = schema.get("required", ())
    return [
        (
            code(prefix + key),
            " or ".join(dict.fromkeys(_type(part, prefix + key, refer) for part in _alternatives(value))),
            "required" if key in required else _default(value),
            escape(value.get("description", "")),
        )
        for key, value in schema["properties"].items()
    ]


def _alternatives(value: Schema) -> list[Schema]:
    found: list[Schema] = value.get("anyOf") or value.get("allOf") or [value]
    return found


def _name(part: Schema) -> str:
    return str(part["$ref"]).rpartition("/")[2]


def _type(part: Schema, key: str, refer: Refer) -> str:
    """Return the type of a value in words, with its range."""
    if "$ref" in part:
        return refer(key, _name(part))
    if "const" in part:
        return code(json.dumps(part["const"]))
    if "enum" in part:
        return ", ".join(code(str(value)) for value in part["enum"])
    if pattern := part.get("pattern"):
        return escape(PATTERN_DESCRIPTIONS.get(pattern, "text"))
    return _container(part, key, refer) or _scalar(part)


def _container(part: Schema, key: str, refer: Refer) -> str:
    if part.get("type") == "array":
        items = part.get("prefixItems") or [part.get("items", {})]
        return _of("list", " and ".join(dict.fromkeys(_type(each, key, refer) for each in items)))
    by_pattern = next(iter(part.get("patternProperties", {}).values()), None)
    values = by_pattern or part.get("additionalProperties")
    return _of("mapping", _type(values, key, refer)) if isinstance(values, dict) and values else ""


def _of(container: str, item: str) -> str:
    return f"{container}, each {item}" if item.startswith(("a ", "an ")) else f"{container} of {item}"


def _scalar(part: Schema) -> str:
    kind = str(part.get("type", "any value"))
    bounds = [f"{word} {part[bound]}" for bound, word in BOUNDS.items() if abs(part.get(bound, TECHNICAL)) < TECHNICAL]
    return " ".join([NAMES.get(kind, kind), " and ".join(bounds)]).strip()


def _default(value: Schema) -> str:
    default = value.get("default")
    if isinstance(default, dict) and default:
        return ""  # a section, whose keys have their own defaults
    return code(json.dumps(default)) if "default" in value else ""
