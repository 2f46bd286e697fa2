# SPDX-License-Identifier: Apache-2.0
"""MTP layers in vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import METHOD as KEY
from trtspec.backends.common.checks import source_architecture
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmMethod, VllmRelease, cite, having
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.mtp import count_layers


def _check(context: PlanContext, release: VllmRelease) -> Iterator[Diagnostic]:
    source, depth = context.sources["target"], context.draft_shape.max_depth
    layers = count_layers(source.config)
    if not layers:
        yield Diagnostic(KEY, "no-draft", "the target lacks MTP layers", "use method: ngram")
    elif depth > layers and depth % layers:
        message = f"the target's {layers} MTP layers are used in turn, and {depth} is not a multiple of {layers}"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, source=f"{cite(release)}, n_predict")
    if not _has_mtp_layers(release, source):
        message = f"vLLM {release.version} does not draft with MTP layers of {source.config.get('model_type')}"
        hint = having(lambda each: _has_mtp_layers(each, source)) or "use method: ngram"
        yield Diagnostic(KEY, "version", message, hint, source=cite(release))


def _has_mtp_layers(release: VllmRelease, source: Source) -> bool:
    by_type = source.config.get("model_type") in release.mtp_models
    return by_type or source_architecture(source) in release.mtp_architectures


METHOD = VllmMethod("mtp", check=_check)
