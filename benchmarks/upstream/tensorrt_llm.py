# SPDX-License-Identifier: Apache-2.0
"""Read the LLM API's arguments of a TensorRT-LLM release from its sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from benchmarks.upstream.syntax import Field, class_fields, find_class, literals
from benchmarks.upstream.wheel import Sources

ARGUMENTS = "tensorrt_llm/llmapi/llm_args.py"
VERSION = "tensorrt_llm/version.py"
BASE = "DecodingBaseConfig"
TYPE = "decoding_type"
# Decoding types that trtspec does not use: for TensorRT engines, for tests and for tools.
LEFT_OUT = {"AUTO", "Lookahead", "Medusa", "SaveHiddenStates", "SaveState", "User_Provided"}


def members(names: Iterable[str]) -> list[str]:
    """Return the members that `read` and `schema` read."""
    return [name for name in names if name == ARGUMENTS]


def read(wheel: Sources) -> dict[str, set[str]]:
    """Return the decoding types, `fields`: the fields of each type as TYPE.FIELD, and `unknown`: unused types."""
    types = decoding_types(wheel)
    unused = {*types} & (LEFT_OUT | ({"Eagle"} if "Eagle3" in types else set()))  # since 1.3 Eagle is another name
    fields = {f"{name}.{field}" for name in types.keys() - unused for field in types[name] if field != TYPE}
    return {"decoding_types": {*types} - unused, "fields": fields, "unknown": unused}


def schema(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the arguments of LLM on the PyTorch backend, and those of each decoding type."""
    tree = wheel.tree(ARGUMENTS)
    sections = {f"speculative_config:{name}": fields for name, fields in decoding_types(wheel).items()}
    arguments = class_fields([tree], "TorchLlmArgs")
    kv_cache = class_fields([tree], "KvCacheConfig")
    return {"": arguments, "kv_cache_config": kv_cache, **sections}


def decoding_types(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the fields of each class with a `decoding_type: Literal[...]`, by that name.

    Up to 1.2, where the type is a class variable, the names are keys of the table in DecodingBaseConfig.from_dict.
    """
    tree = wheel.tree(ARGUMENTS)
    names = literals([tree])
    found: dict[str, dict[str, Field]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            fields = _public(class_fields([tree], node.name, names))
            found |= {str(value): fields for value in (fields[TYPE].values if TYPE in fields else ())}
    for name, own in () if found else _table(find_class([tree], BASE)):
        found[name] = {
            TYPE: Field(TYPE, "str", "", frozenset({name}), frozenset()),
            **_public(class_fields([tree], own)),
        }
    return found


def _public(fields: dict[str, Field]) -> dict[str, Field]:
    return {name: each for name, each in fields.items() if not name.startswith("_")}


def _table(node: ast.AST | None) -> list[tuple[str, str]]:
    """Return the pairs of a constant and a name in the dictionaries below a node."""
    tables = [each for each in ast.walk(node) if isinstance(each, ast.Dict)] if node else []
    pairs = [pair for each in tables for pair in zip(each.keys, each.values, strict=True)]
    return [(str(k.value), v.id) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(v, ast.Name)]
