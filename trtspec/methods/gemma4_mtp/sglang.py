# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 assistants in SGLang, whose algorithm reads the target's frozen KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import SglangMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.gemma4_mtp import check_pair


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    yield from check_pair(context.sources["target"], context.sources["draft"], context.recipe.engine.max_seq_len)


METHOD = SglangMethod("FROZEN_KV_MTP", has_net=True, check=_check)
