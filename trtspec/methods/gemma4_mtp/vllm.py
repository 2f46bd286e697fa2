# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 assistants in vLLM, whose method is mtp with a model."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmMethod, VllmRelease, cite, having
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.gemma4_mtp import DRAFT, assistant_type, check_pair


def _check(context: PlanContext, release: VllmRelease) -> Iterator[Diagnostic]:
    draft = context.sources["draft"]
    yield from check_pair(context.sources["target"], draft, context.recipe.engine.max_seq_len)
    kind = assistant_type(draft)
    if kind and kind not in release.assistants:
        message = f"vLLM {release.version} does not draft with assistants of the type {kind}"
        yield Diagnostic(DRAFT, "version", message, having(lambda each: kind in each.assistants), source=cite(release))


METHOD = VllmMethod("mtp", check=_check)
