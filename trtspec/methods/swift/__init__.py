# SPDX-License-Identifier: Apache-2.0
"""The target drafts for itself, with some of its attention blocks and MLPs left out.

SWIFT (Xia et al. 2024, arXiv:2410.06916). A sublayer that is left out is the identity. Nothing is trained, and no other
model is loaded. `trtspec swift` searches for sublayers that a target can do without.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import Method, Options
from trtspec.methods.layer_skips import KINDS, Skip

SEARCH = "trtspec swift RECIPE finds a set and prints it"


class SwiftOptions(Options):
    """The sublayers that are left out, and when drafting stops."""

    skip: Skip = Field(default=Skip(), description="The sublayers left out, as found by `trtspec swift`")
    stop_below: float = Field(
        default=0.0, ge=0, lt=1, description="Stop drafting where no token is more probable than this to the draft"
    )


def _check_options(options: SwiftOptions, config: ModelConfig) -> list[Diagnostic]:
    return list(check_skip(options.skip, config.num_layers))


def check_skip(skip: Skip, num_layers: int) -> Iterator[Diagnostic]:
    """Report why a target of `num_layers` layers cannot draft without these sublayers."""
    for kind in KINDS:
        layers = skip.of(kind)
        if outside := sorted({layer for layer in layers if not 0 <= layer < num_layers}):
            shown = ", ".join(map(str, outside))
            yield Diagnostic(
                f"skip.{kind}", "out-of-range", f"the target's layers are 0..{num_layers - 1}, not {shown}"
            )
        if repeated := sorted({layer for layer in layers if layers.count(layer) > 1}):
            yield Diagnostic(f"skip.{kind}", "out-of-range", f"named more than once: {', '.join(map(str, repeated))}")
    if not skip.sublayers:
        yield Diagnostic(
            "skip", "out-of-range", "nothing is left out: drafting would cost what the target costs", SEARCH
        )
    elif len(skip.sublayers) == 2 * num_layers:
        yield Diagnostic("skip", "out-of-range", "everything is left out: no layer remains to draft with", SEARCH)


METHOD = Method(
    summary="the target drafts for itself, with sublayers left out",
    drafts_with="nothing",
    has_confidence=True,
    draft_lens=range(1, 26),
    default_draft_len=8,
    options=SwiftOptions,
    check_options=_check_options,
)
