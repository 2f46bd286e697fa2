# SPDX-License-Identifier: Apache-2.0
"""The grammar types of NVIDIA/TensorRT-Edge-LLM:experimental/server/runtime/engine.py@0.11.0."""

from __future__ import annotations

_GUIDE_TYPE_ENUM = {
    name: lambda rt, name=name: name.upper()
    for name in ("json_object", "json_schema", "regex", "ebnf", "structural_tag", "choice")
}
