# SPDX-License-Identifier: Apache-2.0
"""Read the features of a TensorRT Edge-LLM release from its wheel."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from benchmarks.upstream.syntax import Field, find_class, options, parameters, strings
from benchmarks.upstream.wheel import Sources

BUILDER, MODELS = "experimental/builder/cli.py", "experimental/builder/models/registry.py"
ENGINE, CONFIG = "experimental/server/runtime/engine.py", "experimental/server/config.py"
SPEC_TYPE = "spec-type"


def members(names: Iterable[str]) -> list[str]:
    """Return the members that `read` and `schema` read."""
    return [name for name in names if name in (BUILDER, MODELS, ENGINE, CONFIG)]


def read(wheel: Sources) -> dict[str, set[str]]:
    """Return the methods of the builder, the keys of speculative_config, and text-only and other model types."""
    found = schema(wheel)
    models, others = _model_types(wheel)
    return {
        "methods": {str(value) for value in found["build"][SPEC_TYPE].values} - {"none"},
        "fields": set(found["llm.speculative_config"]),
        "models": models,
        "unknown": others,
    }


def schema(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the options of the build command, the arguments of LLM, and the keys of its speculative_config."""
    node = find_class([wheel.tree(ENGINE)], "LLM")
    methods = [each for each in (node.body if node else []) if isinstance(each, ast.FunctionDef)]
    arguments = next((each for each in methods if each.name == "__init__"), None)
    return {
        "": {"engines": Field("engines"), "llm": Field("llm"), "build": Field("build")},
        "build": options(wheel.tree(BUILDER)),
        "llm": parameters(arguments, {}) if arguments else {},
        "llm.speculative_config": _speculative_fields(wheel),
    }


def _speculative_fields(wheel: Sources) -> dict[str, Field]:
    """Return the supported keys, and the methods with which `SpeculativeConfig.parse` compares."""
    keys: set[str] = set()
    methods: set[str] = set()
    for node in ast.walk(find_class([wheel.tree(CONFIG)], "SpeculativeConfig") or ast.Module([], [])):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "supported_keys":
            keys = strings(node.value)
        elif (
            isinstance(node, ast.Compare) and ast.unparse(node.left) == "method" and isinstance(node.ops[0], ast.NotIn)
        ):
            methods |= strings(node.comparators[0])
    found = {key: Field(key) for key in sorted(keys)}
    return found | ({"method": Field("method", "str", "", frozenset(methods), frozenset())} if "method" in keys else {})


def _model_types(wheel: Sources) -> tuple[set[str], set[str]]:
    """Return the model types whose only component is the language model, and those with further components."""
    text: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(wheel.tree(MODELS)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ModelFamily" and len(node.args) > 1:
            for name, components in _variants(node.args[1]):
                (text if components == {"LLM"} else others).add(name)
    return text, others


def _variants(node: ast.expr) -> list[tuple[str, set[str]]]:
    if isinstance(node, ast.DictComp):
        names: set[str] = strings(node.generators[0].iter)
        return [(name, _components(node.value)) for name in names]
    if not isinstance(node, ast.Dict):
        return []
    pairs = zip(node.keys, node.values, strict=True)
    return [(str(key.value), _components(value)) for key, value in pairs if isinstance(key, ast.Constant)]


def _components(node: ast.expr) -> set[str]:
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
