# SPDX-License-Identifier: Apache-2.0
"""Compute the speed-up for each category of prompts, because it differs between e.g. code and chat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trtspec.bench.load.intervals import ratio_of_rounds
from trtspec.bench.load.rounds import Round


def category_speedups(served: Sequence[Round], alone: Sequence[Round]) -> dict[str, dict[str, Any]]:
    """Return each category's ratio with its interval, "-" for prompts without one; empty for a single category.

    A round's ratio is the geometric mean of baseline TPOT / served TPOT over the requests that both arms completed.
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
