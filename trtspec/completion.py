# SPDX-License-Identifier: Apache-2.0
"""What an editor or a shell offers for a recipe: keys, and the names that extensions bring.

Asks the registry for methods with their options, for backends with their versions, and for GPUs; names none itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.backends.base import backends
from trtspec.backends.choose import AUTO
from trtspec.gpus import GPUS
from trtspec.methods.base import ATTRIBUTE, PACKAGE, Method
from trtspec.recipe.schema import recipe_json_schema
from trtspec.registry import discover_all


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipes with the names of all extensions, those of installed packages among them.

    The value of `method` selects the schema of `options`, so that an option of another method is an error.
    """
    schema = recipe_json_schema()
    definitions, methods = schema["$defs"], discover_all(PACKAGE, ATTRIBUTE)
    speculation, engine = (definitions[name]["properties"] for name in ("Speculation", "Engine"))
    speculation["method"] |= _enum({name: method.summary for name, method in methods.items()})
    engine["backend"] |= _enum({AUTO: "the plan decides", **{name: each.summary for name, each in backends().items()}})
    engine["version"]["anyOf"].insert(0, _enum(_versions()))
    engine["gpu"]["anyOf"].insert(0, _enum({gpu.name: f"{gpu.product}, sm_{gpu.sm}" for gpu in GPUS.values()}))
    definitions["Speculation"]["allOf"] = [_selected(name, method) for name, method in methods.items()]
    definitions |= {_definition(name): _options_schema(name, method) for name, method in methods.items()}
    return schema


def _enum(described: Mapping[str, str]) -> dict[str, Any]:
    return {"enum": list(described), "enumDescriptions": list(described.values())}


def _versions() -> dict[str, str]:
    """Return every version that can be asked for, and which backends have it."""
    having = [(version, name) for name, backend in backends().items() for version in backend.versions() if version]
    return {each: ", ".join(name for version, name in having if version == each) for each, _ in sorted(having)}


def _selected(name: str, method: Method) -> dict[str, Any]:
    """Return the rule that a method brings for the other keys of `speculation`."""
    rules: dict[str, Any] = {"options": {"$ref": f"#/$defs/{_definition(name)}"}}
    if lens := method.draft_lens:
        rules["draft_len"] = {"minimum": lens[0], "maximum": lens[-1]}
    is_method = {"properties": {"method": {"const": name}}, "required": ["method"]}
    return {"if": is_method, "then": {"properties": rules}}


def _options_schema(name: str, method: Method) -> dict[str, Any]:
    return method.options.model_json_schema(ref_template=f"#/$defs/{_definition(name)}/$defs/{{model}}")


def _definition(method: str) -> str:
    return f"{method}.options"
