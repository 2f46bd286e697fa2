# SPDX-License-Identifier: Apache-2.0
"""A closed loop: so many requests at once, each followed by the next as soon as it is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from trtspec.bench.load.arrival import THROUGHPUT, Ask, Load
from trtspec.bench.load.client import clock


@dataclass(frozen=True)
class Closed(Load):
    """`concurrency` requests at once."""

    concurrency: int

    kind = "closed"
    judged_by = THROUGHPUT

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}"

    @property
    def requests_a_round(self) -> int:
        """Return three times as many as run at once: the first begin together, the last end beside empty places."""
        return max(16, 3 * self.concurrency)

    @property
    def places(self) -> int:
        """Return the concurrency."""
        return self.concurrency

    async def run(self, ask: Ask, requests: int, seed: int) -> None:
        """Ask all of them; one is due when its turn comes."""
        numbers = iter(range(requests))

        async def one_after_another() -> None:
            for number in numbers:
                await ask(number, clock())

        await asyncio.gather(*(one_after_another() for _ in range(min(self.concurrency, requests))))
