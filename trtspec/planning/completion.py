# SPDX-License-Identifier: Apache-2.0
"""Completion of recipes in editors and shells: keys, values and the names of extensions.

Methods with their options, backends with their versions, and GPUs come from their registries; no name is hard-coded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.backends.base import AUTO, backends
from trtspec.core.gpus import GPUS
from trtspec.core.registry import discover_all
from trtspec.methods.base import ATTRIBUTE, PACKAGE, Method
from trtspec.recipe.schema import recipe_json_schema
from trtspec.recipe.validate import ITEM, recipe_keys

OPTIONS = "speculation.options"
NOT_SET = ("schema", "extends", "matrix", OPTIONS)


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipes including the names of all extensions, also from installed packages.

    The value of `method` selects the schema of `options`, so editors flag an option of another method.
    """
    schema = recipe_json_schema()
    definitions, methods = schema["$defs"], discover_all(PACKAGE, ATTRIBUTE)
    speculation, engine = (definitions[name]["properties"] for name in ("Speculation", "Engine"))
    speculation["method"] |= _enum({name: method.summary for name, method in methods.items()})
    engine["backend"] |= _enum({AUTO: "the plan decides", **{name: each.summary for name, each in backends().items()}})
    known = [(version, name) for name, backend in backends().items() for version in backend.versions() if version]
    versions = {each: ", ".join(name for version, name in known if version == each) for each, _ in sorted(known)}
    engine["version"]["anyOf"].insert(0, _enum(versions))
    engine["gpu"]["anyOf"].insert(0, _enum({gpu.name: f"{gpu.product}, sm_{gpu.sm}" for gpu in GPUS.values()}))
    definitions["Speculation"]["allOf"] = [_selected(name, method) for name, method in methods.items()]
    for name, method in methods.items():
        template = f"#/$defs/{_definition(name)}/$defs/{{model}}"
        definitions[_definition(name)] = method.options.model_json_schema(ref_template=template)
    return schema


def override_keys(prefix: str) -> dict[str, str]:
    """Return the keys for `--set` that start with `prefix`, with descriptions.

    Methods are loaded only if `prefix` can be the start of a method option.
    """
    keys = recipe_keys()
    sections = {key.rpartition(".")[0] for key in keys}
    ends = {key: text for key, text in keys.items() if key not in sections and key not in NOT_SET and ITEM not in key}
    return _beginning(prefix, ends) or _beginning(prefix, _option_keys())


def described_values(key: str) -> dict[str, str]:
    """Return the known values of a recipe key with descriptions; empty if the values are not restricted."""
    schema = editor_schema()
    parts = [schema]
    for name in key.split("."):
        parts = [below for part in parts for below in _properties(part, schema, name)]
    known = {value: text for part in parts for value, text in _values(part)}
    scalars = [part["default"] for part in parts if type(part.get("default")) in (int, float, str)]
    return known | {str(value): "the default" for value in scalars if str(value) not in known}


def _beginning(prefix: str, keys: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in keys.items() if key.startswith(prefix)}


def _option_keys() -> dict[str, str]:
    methods = discover_all(PACKAGE, ATTRIBUTE)
    found: dict[str, list[str]] = {}
    for name, method in methods.items():
        for option in method.options.model_fields:
            found.setdefault(f"{OPTIONS}.{option}", []).append(name)
    return {key: ", ".join(having) for key, having in found.items()}


def _properties(part: dict[str, Any], schema: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield all definitions of property `name` below a part of the schema, following references and conditions."""
    if "$ref" in part:
        found: Any = schema
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        yield from _properties(found, schema, name)
    if name in part.get("properties", {}):
        yield part["properties"][name]
    for each in (*part.get("anyOf", ()), *(rule["then"] for rule in part.get("allOf", ()))):
        yield from _properties(each, schema, name)


def _values(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "enum" in part:
        yield from zip(map(str, part["enum"]), part.get("enumDescriptions", [""] * len(part["enum"])), strict=True)
    elif part.get("type") == "boolean":
        yield from (("true", ""), ("false", ""))
    for each in part.get("anyOf", ()):
        yield from _values(each)


def _enum(described: Mapping[str, str]) -> dict[str, Any]:
    return {"enum": list(described), "enumDescriptions": list(described.values())}


def _selected(name: str, method: Method) -> dict[str, Any]:
    """Return the JSON Schema rule that a method imposes on the other keys of `speculation`."""
    rules: dict[str, Any] = {"options": {"$ref": f"#/$defs/{_definition(name)}"}}
    if lens := method.draft_lens:
        rules["draft_len"] = {"minimum": lens[0], "maximum": lens[-1]}
    is_method = {"properties": {"method": {"const": name}}, "required": ["method"]}
    return {"if": is_method, "then": {"properties": rules}}


def _definition(method: str) -> str:
    return f"{method}.options"
