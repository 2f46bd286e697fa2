# SPDX-License-Identifier: Apache-2.0
"""Read the features of an SGLang release from its wheel."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from benchmarks.upstream.syntax import Field, class_fields, find_class, literals, strings
from benchmarks.upstream.wheel import Sources

SRT = "sglang/srt"
SERVER_ARGS, FIELDS = f"{SRT}/server_args.py", f"{SRT}/arg_groups/fields/"
HOOK, ALGORITHM = f"{SRT}/arg_groups/speculative_hook.py", f"{SRT}/speculative/spec_info.py"
MODEL_CONFIG, ADAPTIVE = f"{SRT}/configs/model_config.py", f"{SRT}/speculative/adaptive_spec_params.py"
MODELS = f"{SRT}/models/"
PREFIX = "speculative_"
# Drafter classes by trtspec's method. A class that matches none is reported and stays out of the data.
NETS = {
    "eagle": r".*ForCausalLMEagle",
    "eagle3": r".*Eagle3.*",
    "dflash": r"(MiniMax)?DFlash.*",
    "dspark": r".*DSpark.*",
    "gemma4_mtp": r"Gemma4.*Assistant.*",
}
OTHER_NETS = r".*(Eagle|EAGLE|Draft|Domino|Uno).*"
# Names that _config_draft_model compares, but that are drafter classes.
DRAFTERS = r".*(NextN|MTP|DSpark|DSparkMiniMaxDraftModel|DraftModel)"


def members(names: Iterable[str]) -> list[str]:
    """Return the members that `read` and `schema` read."""
    fixed = {SERVER_ARGS, HOOK, ALGORITHM, MODEL_CONFIG, ADAPTIVE}
    return [name for name in names if name in fixed or (name.startswith((FIELDS, MODELS)) and name.endswith(".py"))]


def read(wheel: Sources) -> dict[str, set[str]]:
    """Return the features of a release, by the facts of versions.yaml, and `unknown`: unclassified drafter classes."""
    nets = {f"nets_{method}": set[str]() for method in NETS}
    unknown = set()
    for name in _entry_classes(wheel):
        method = next((method for method, pattern in NETS.items() if re.fullmatch(pattern, name)), "")
        if method:
            nets[f"nets_{method}"].add(name)
        elif re.fullmatch(OTHER_NETS, name):
            unknown.add(name)
    fields = {name for name in schema(wheel)[""] if name.startswith(PREFIX)}
    # a length of 0 is valid: the length can depend on the number of requests and be 0
    schedule = "isinstance(s, int) and s >= 0" in wheel.text(ADAPTIVE)
    return {
        "algorithms": _algorithms(wheel),
        "fields": fields,
        **nets,
        "mtp_targets": _mtp_targets(wheel),
        "does": {"schedule"} if schedule else set(),
        "unknown": unknown,
    }


def schema(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the arguments of Engine, which are the fields of ServerArgs."""
    groups = [wheel.tree(name) for name in wheel.names() if name.startswith(FIELDS) and name.endswith(".py")]
    trees = [wheel.tree(SERVER_ARGS), *groups]
    names = literals(trees)
    found = class_fields(trees, "ServerArgs", names)
    for tree in groups:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found |= class_fields([tree], node.name, names)
    if (name := f"{PREFIX}algorithm") in found:
        found[name] = Field(name, "str | None", "None", frozenset(_algorithms(wheel)), frozenset({"None"}))
    return {"": found}


def _algorithms(wheel: Sources) -> set[str]:
    """Return the names of SpeculativeAlgorithm, and NEXTN, which is an alias."""
    node = find_class([wheel.tree(ALGORITHM)], "SpeculativeAlgorithm")
    body = node.body if node else []
    names = {ast.unparse(each.targets[0]) for each in body if isinstance(each, ast.Assign)}
    alias = '== "NEXTN"' in wheel.text(SERVER_ARGS) + wheel.text(HOOK)
    return {name for name in names if name.isupper() and name != "NONE"} | ({"NEXTN"} if alias else set())


def _entry_classes(wheel: Sources) -> set[str]:
    """Return the model classes that SGLang registers, by the EntryClass of each module."""
    found = set()
    for path in wheel.names():
        if path.startswith(MODELS) and path.endswith(".py") and "EntryClass" in wheel.text(path):
            for node in wheel.tree(path).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
                    found |= {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    return found


def _mtp_targets(wheel: Sources) -> set[str]:
    """Return the target classes whose MTP layers `_config_draft_model` makes a drafter."""
    tree = wheel.tree(MODEL_CONFIG)
    named = {
        node.targets[0].id: strings(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    functions = (node for node in ast.walk(tree) if getattr(node, "name", "") == "_config_draft_model")
    found: set[str] = set()
    for node in (each for function in functions for each in ast.walk(function)):
        if isinstance(node, ast.Compare) and "architectures" in ast.unparse(node.left):
            for right in node.comparators:
                found |= strings(right)
                found |= {
                    name for each in ast.walk(right) if isinstance(each, ast.Name) for name in named.get(each.id, ())
                }
    return {name for name in found if not re.fullmatch(DRAFTERS, name)}
