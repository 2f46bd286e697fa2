# SPDX-License-Identifier: Apache-2.0
"""MTP layers in SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import METHOD as KEY
from trtspec.backends.common.checks import source_architecture
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import SglangMethod, releases
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.mtp import count_layers

SOURCE = "sgl-project/sglang:python/sglang/srt/configs/model_config.py@v0.5.23, _config_draft_model"


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    source = context.sources["target"]
    found = source_architecture(source) or "none"
    if not count_layers(source.config):
        yield Diagnostic(KEY, "no-draft", "the target lacks MTP layers", "use method: ngram")
    elif found not in releases()[context.version].mtp_targets:
        message = f"SGLang {context.version} does not draft with MTP layers of {found}"
        yield Diagnostic(KEY, "version", message, "use method: ngram", source=SOURCE)


METHOD = SglangMethod("NEXTN", has_eagle_worker=True, check=_check)
