# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 assistants in SGLang, whose algorithm reads the target's frozen KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import SglangMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.gemma4_mtp import assistant_type, check_pair


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    target, draft = context.sources["target"], context.sources["draft"]
    if assistant_type(draft):  # other classes are reported as those that this version does not run
        yield from check_pair(target, draft, context.recipe.engine.max_seq_len)


METHOD = SglangMethod("FROZEN_KV_MTP", has_net=True, check=_check)
