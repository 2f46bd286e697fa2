# SPDX-License-Identifier: Apache-2.0
"""Read the LLM API's arguments of a TensorRT-LLM release from its wheel."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from benchmarks.upstream.syntax import Field, class_fields, literals
from benchmarks.upstream.wheel import Sources

ARGUMENTS = "tensorrt_llm/llmapi/llm_args.py"
TYPE = "decoding_type"


def members(names: Iterable[str]) -> list[str]:
    """Return the members that `read` and `schema` read."""
    return [name for name in names if name == ARGUMENTS]


def read(wheel: Sources) -> dict[str, set[str]]:
    """Return the decoding types, and `fields`: the fields of each type as TYPE.FIELD."""
    types = decoding_types(wheel)
    fields = {f"{name}.{field}" for name, found in types.items() for field in found if field != TYPE}
    return {"decoding_types": set(types), "fields": fields}


def schema(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the arguments of LLM on the PyTorch backend, and those of each decoding type."""
    tree = wheel.tree(ARGUMENTS)
    sections = {f"speculative_config:{name}": fields for name, fields in decoding_types(wheel).items()}
    arguments = class_fields([tree], "TorchLlmArgs")
    kv_cache = class_fields([tree], "KvCacheConfig")
    return {"": arguments, "kv_cache_config": kv_cache, **sections}


def decoding_types(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the fields of each class with a `decoding_type: Literal[...]`, by that name."""
    tree = wheel.tree(ARGUMENTS)
    names = literals([tree])
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            fields = class_fields([tree], node.name, names)
            for value in fields[TYPE].values if TYPE in fields else ():
                found[str(value)] = {name: field for name, field in fields.items() if not name.startswith("_")}
    return found
