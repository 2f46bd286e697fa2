# SPDX-License-Identifier: Apache-2.0
"""Contexts for engines that run unconverted checkpoints, with the facts of the recipe and the checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.backends.contexts import make_context
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import find_method

FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}


def facts(config: dict[str, Any] | None = None, quantization: dict[str, Any] | None = None) -> Source:
    """Return a checkpoint's metadata, by default a plain Llama's."""
    plain = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131072}
    return Source(Path("/nowhere"), plain | (config or {}), {}, quantization or {})


def source_context(backend: str, version: str, method: str = "none", **changes: Any) -> PlanContext:
    """Return a context; `target_facts` and `draft_facts` are the checkpoints', other changes `make_context`'s."""
    sources = {role: changes.pop(f"{role}_facts", facts()) for role in ("target", "draft")}
    engine = {"engine__backend": backend, "engine__gpu": "h100", "engine__max_batch_size": 4}
    draft = {"draft": "llama-3.2-1b"} if find_method(method).drafts_with == "model" else {}
    context = make_context(version=version, speculation__method=method, **{**engine, **draft, **changes})
    return replace(context, sources=sources)


def said(diagnostics: Any) -> dict[str, Diagnostic]:
    """Return diagnostics by path and code, all of which are unique."""
    listed = list(diagnostics)
    found = {f"{diagnostic.path} {diagnostic.code}": diagnostic for diagnostic in listed}
    assert len(found) == len(listed)
    return found
