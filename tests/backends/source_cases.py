# SPDX-License-Identifier: Apache-2.0
"""Cases of engines that run sources as they lie: what a case says, and what the checkpoints say of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.backends.tensorrt_llm.cases import make_case
from trtspec.checkpoint.source import SourceFacts
from trtspec.backends.base import Case, Objection

FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}


def facts(config: dict[str, Any] | None = None, quantization: dict[str, Any] | None = None) -> SourceFacts:
    """Return a checkpoint's word on itself, by default a plain Llama's."""
    return SourceFacts({"model_type": "llama"} | (config or {}), quantization or {}, 16 << 30)


def source_case(backend: str, version: str, method: str = "none", **changes: Any) -> Case:
    """Return a case; `target_facts` and `draft_facts` are the checkpoints', the other changes those of `make_case`."""
    sources = {role: changes.pop(f"{role}_facts", facts()) for role in ("target", "draft")}
    engine = {"engine__backend": backend, "engine__gpu": "h100", "engine__max_batch_size": 4}
    draft = {"draft": "llama-3.2-1b"} if method == "draft_target" else {}
    case = make_case(version=version, speculation__method=method, **{**engine, **draft, **changes})
    return replace(case, sources=sources)


def said(objections: Any) -> dict[str, Objection]:
    """Return objections by path and code, of which none stands twice."""
    listed = list(objections)
    found = {f"{objection.path} {objection.code}": objection for objection in listed}
    assert len(found) == len(listed)
    return found
