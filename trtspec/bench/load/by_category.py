# SPDX-License-Identifier: Apache-2.0
"""How many times as fast each kind of prompt is with drafts: what pays for code may not pay for chat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trtspec.bench.load.intervals import ratio_of_rounds
from trtspec.bench.load.rounds import Round


def speedup_by_kind(served: Sequence[Round], alone: Sequence[Round]) -> dict[str, dict[str, Any]]:
    """Return the ratio of each kind of prompt with its interval, where there are several; "-" is of those without one.

    A round's ratio is the geometric mean, over its requests that both arms answered, of the baseline's time of a token
    after the first over the served arm's.
    """
    kinds = sorted({sample.kind for each in served for sample in each.samples})
    if len(kinds) < 2:
        return {}
    ratios = {kind: [_ratio(kind, *pair) for pair in zip(served, alone, strict=True)] for kind in kinds}
    known = {kind: [each for each in found if each is not None] for kind, found in ratios.items()}
    return {kind or "-": ratio_of_rounds(found).as_dict() for kind, found in known.items() if found}


def _ratio(kind: str, served: Round, alone: Round) -> float | None:
    logs = [
        math.log(theirs.tpot_ms / ours.tpot_ms)
        for ours, theirs in zip(served.samples, alone.samples, strict=True)
        if ours.kind == kind and ours.ok and theirs.ok and ours.tpot_ms and theirs.tpot_ms
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None
