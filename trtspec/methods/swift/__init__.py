# SPDX-License-Identifier: Apache-2.0
"""SWIFT: self-speculation, in which the target drafts with some of its attention blocks and MLPs skipped.

Xia et al. 2024, arXiv:2410.06916. A skipped sublayer adds nothing to the residual. The method needs neither training
nor another model. `trtspec search-skips` searches for sublayers to skip.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import Method, Options
from trtspec.methods.layer_pruning import KINDS, Skip

SEARCH = "find a set with trtspec search-skips RECIPE"


class SwiftOptions(Options):
    """The skipped sublayers, and the probability below which drafting stops."""

    skip: Skip = Field(default=Skip(), description="The skipped sublayers, as found by `trtspec search-skips`")
    stop_below: float = Field(
        default=0.0, ge=0, lt=1, description="Stop drafting when the draft's highest probability is below this value"
    )


def _check_options(options: SwiftOptions, config: ModelConfig) -> Iterator[Diagnostic]:
    skip, num_layers = options.skip, config.num_layers
    for kind in KINDS:
        layers = skip.of(kind)
        if outside := sorted({layer for layer in layers if not 0 <= layer < num_layers}):
            shown = ", ".join(map(str, outside))
            yield Diagnostic(
                f"skip.{kind}", "out-of-range", f"the target's layers are 0..{num_layers - 1}, not {shown}"
            )
        if repeated := sorted({layer for layer in layers if layers.count(layer) > 1}):
            yield Diagnostic(f"skip.{kind}", "out-of-range", f"listed more than once: {', '.join(map(str, repeated))}")
    if not skip.sublayers:
        yield Diagnostic(
            "skip", "out-of-range", "no sublayer is skipped: drafting would cost as much as the target", SEARCH
        )
    elif len(skip.sublayers) == 2 * num_layers:
        yield Diagnostic("skip", "out-of-range", "all sublayers are skipped: no layer remains to draft with", SEARCH)


METHOD = Method(
    summary="the target drafts for itself, with sublayers skipped",
    drafts_with="nothing",
    has_confidence=True,
    draft_lens=range(1, 26),
    default_draft_len=8,
    options=SwiftOptions,
    check_options=_check_options,
)
