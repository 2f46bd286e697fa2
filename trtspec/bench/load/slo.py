# SPDX-License-Identifier: Apache-2.0
"""Service level objectives per request, which define goodput (DistServe, arXiv:2401.09670)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trtspec.bench.load.sample import MS, RequestSample
from trtspec.core.errors import TrtspecError

HINT = "examples: ttft=200ms,tpot=30ms or e2e=5s"


@dataclass(frozen=True)
class Slo:
    """Upper limits for a request's latencies; a limit may be None."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def holds(self, sample: RequestSample) -> bool:
        """Return whether a request meets all limits; an incomplete one does not."""
        if not sample.ok:
            return False
        limits = ((sample.ttft_ms, self.ttft_ms), (sample.tpot_ms, self.tpot_ms), (sample.e2e_ms, self.e2e_ms))
        return all(limit is None or (took or 0.0) <= limit for took, limit in limits)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON fields."""
        return {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "e2e_ms": self.e2e_ms}


def parse_slo(text: str) -> Slo:
    """Parse the value of --slo; raise TrtspecError if it is invalid."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(ttft|tpot|e2e)=([0-9]+(?:\.[0-9]+)?)(ms|s)", part.strip())
        if not match or f"{match[1]}_ms" in limits:
            raise TrtspecError(f"--slo: {part.strip()!r} is not a valid limit", hint=HINT)
        limits[f"{match[1]}_ms"] = float(match[2]) * (MS if match[3] == "s" else 1)
    return Slo(**limits)
