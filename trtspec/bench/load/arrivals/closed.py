# SPDX-License-Identifier: Apache-2.0
"""Closed loop: a fixed number of concurrent requests; each completed one starts the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from trtspec.bench.load.arrivals import THROUGHPUT, ArrivalProcess, Ask
from trtspec.bench.load.client import clock


@dataclass(frozen=True)
class Closed(ArrivalProcess):
    """A load with `concurrency` concurrent requests."""

    concurrency: int

    kind = "closed"
    judged_by = THROUGHPUT

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}"

    @property
    def requests_a_round(self) -> int:
        """Return three times the concurrency, to limit the effect of the synchronized start and the partly idle end."""
        return max(16, 3 * self.concurrency)

    @property
    def slots(self) -> int:
        return self.concurrency

    async def run(self, ask: Ask, requests: int, seed: int) -> None:
        """Send all requests; each one's scheduled time is when a slot becomes free."""
        numbers = iter(range(requests))

        async def one_after_another() -> None:
            for number in numbers:
                await ask(number, clock())

        await asyncio.gather(*(one_after_another() for _ in range(min(self.concurrency, requests))))
