# SPDX-License-Identifier: Apache-2.0
"""Open loop: requests arrive with exponential gaps, independently of responses."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import accumulate

from trtspec.bench.load.arrivals import LATENCY, ArrivalProcess, Ask
from trtspec.bench.load.client import clock


@dataclass(frozen=True)
class Poisson(ArrivalProcess):
    """Arrivals with an average rate of `requests_per_s`."""

    requests_per_s: float

    kind = "poisson"
    judged_by = LATENCY

    def __str__(self) -> str:
        return f"{self.requests_per_s:g} requests/s"

    @property
    def requests_a_round(self) -> int:
        """Return ten seconds of requests, but at least 32 to reduce sampling error."""
        return max(32, round(10 * self.requests_per_s))

    def arrivals(self, requests: int, seed: int) -> list[float]:
        """Return the arrival times in seconds since the first; equal seeds give equal times."""
        draws = random.Random(seed)
        gaps = (draws.expovariate(self.requests_per_s) for _ in range(requests - 1))
        return list(accumulate(gaps, initial=0.0))

    async def run(self, ask: Ask, requests: int, seed: int) -> None:
        """Send each request at its arrival time, and wait for all responses."""
        began, open_requests = clock(), []
        for number, arrival in enumerate(self.arrivals(requests, seed)):
            await asyncio.sleep(max(0.0, began + arrival - clock()))
            open_requests.append(asyncio.ensure_future(ask(number, began + arrival)))
        await asyncio.gather(*open_requests)
