# SPDX-License-Identifier: Apache-2.0
"""DFlash in vLLM, whose method also runs the classes of DFlash2 and XPress."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmMethod, VllmRelease, cite
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import check_class, find_variant

DRAFT, XPRESS = "speculation.draft.model", "v1/worker/gpu/spec_decode/xpress/speculator.py"


def _check(context: PlanContext, release: VllmRelease) -> Iterator[Diagnostic]:
    draft, found = context.sources["draft"], find_variant(context.sources["draft"])
    yield from check_class(draft)
    if not (found and found.name == "XPress"):
        return
    if draft.config.get("sample_from_anchor"):
        message = "the XPress net also drafts at the position of the last token, which vLLM does not support"
        hint = "use a net with sample_from_anchor: false, such as the published ones"
        yield Diagnostic(DRAFT, "anchor", message, hint, source=cite(release, XPRESS))
    size, whole = draft.config.get("draft_vocab_size"), context.sources["target"].config.get("vocab_size")
    if size is not None and whole is not None and size != whole:
        message = (
            f"the XPress net drafts {size} tokens of {whole}, and vLLM supports XPress only for whole vocabularies"
        )
        hint = "use a net for the whole vocabulary"
        yield Diagnostic(
            DRAFT, "vocabulary", message, hint, source=cite(release, "model_executor/models/qwen3_xpress.py")
        )


METHOD = VllmMethod("dflash", fixed_length=True, check=_check)
