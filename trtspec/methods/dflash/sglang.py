# SPDX-License-Identifier: Apache-2.0
"""DFlash in SGLang, whose algorithm also runs the classes of DFlash2."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import SglangMethod, releases
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import check_class, find_variant


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    found, nets = find_variant(context.sources["draft"]), releases()[context.version].nets["dflash"]
    if found and not any(found.name in name for name in nets):
        message = f"the drafter is {found.net}, whose {found.more} SGLang {context.version} does not compute"
        hint = f"use a DFlash net, or another engine: {found.engines} run it"
        yield Diagnostic("speculation.draft.model", "variant", message, hint)
    else:
        yield from check_class(context.sources["draft"])


METHOD = SglangMethod("DFLASH", has_net=True, drafts_blocks=True, check=_check)
