# SPDX-License-Identifier: Apache-2.0
"""EAGLE-1 and EAGLE-2 in SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from trtspec.backends.common.checks import OPTIONS
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.check import EAGLE_WORKER
from trtspec.backends.sglang.versions import SglangMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle import EagleOptions


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if not cast(EagleOptions, context.options).dynamic:
        message = "SGLang grows trees by the drafter's confidence and does not support static trees"
        hint = "set dynamic: true, with top_k, depth and nodes"
        yield Diagnostic(f"{OPTIONS}.choices", "tree", message, hint, source=EAGLE_WORKER)


METHOD = SglangMethod(
    "EAGLE", tree_width=lambda options: options.top_k or 1, has_net=True, has_eagle_worker=True, check=_check
)
