# SPDX-License-Identifier: Apache-2.0
"""Arrival processes of load tests: the send times of a round's requests, and the metric that compares the arms."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar

from trtspec.bench.load.client import clock

Ask = Callable[[int, float], Awaitable[None]]  # (number in the round, scheduled time of `clock`)
THROUGHPUT, LATENCY = "output_tokens_per_s", "mean_e2e_ms"
LARGER_IS_BETTER = {THROUGHPUT: True, LATENCY: False}


class ArrivalProcess(ABC):
    """Base of arrival processes; each kind is a frozen dataclass whose fields are its parameters.

    A closed loop saturates the server, so the arms are compared by tokens per second. An open loop sends requests at
    given times, so the arms are compared by latency.
    """

    kind: ClassVar[str]
    judged_by: ClassVar[str]

    @property
    @abstractmethod
    def requests_a_round(self) -> int:
        """Return the default number of requests per round."""

    @property
    def slots(self) -> int | None:
        """Return the concurrency of a closed loop, or None for an open loop."""
        return None

    @abstractmethod
    async def run(self, ask: Ask, requests: int, seed: int) -> None:
        """Send each request of a round at its time; return when all responses are complete."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON fields, which also identify the same load in two documents."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # each kind is a dataclass


@dataclass(frozen=True)
class Closed(ArrivalProcess):
    """Closed loop: `concurrency` requests run at the same time, and each completed request starts the next one."""

    concurrency: int

    kind = "closed"
    judged_by = THROUGHPUT

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}"

    @property
    def requests_a_round(self) -> int:
        """Return three times the concurrency, at least 16, to limit the effect of a round's start and end."""
        return max(16, 3 * self.concurrency)

    @property
    def slots(self) -> int:
        return self.concurrency

    async def run(self, ask: Ask, requests: int, seed: int) -> None:
        """Send all requests; the scheduled time of each is the time at which a slot becomes free."""
        numbers = iter(range(requests))

        async def one_after_another() -> None:
            for number in numbers:
                await ask(number, clock())

        await asyncio.gather(*(one_after_another() for _ in range(min(self.concurrency, requests))))


@dataclass(frozen=True)
class Poisson(ArrivalProcess):
    """Open loop: Poisson arrivals at a mean rate of `requests_per_s`, independent of responses."""

    requests_per_s: float

    kind = "poisson"
    judged_by = LATENCY

    def __str__(self) -> str:
        return f"{self.requests_per_s:g} requests/s"

    @property
    def requests_a_round(self) -> int:
        """Return the mean number of requests in ten seconds, at least 32 to limit the sampling error."""
        return max(32, round(10 * self.requests_per_s))

    def arrivals(self, requests: int, seed: int) -> list[float]:
        """Return the arrival times in seconds since the first arrival; equal seeds give equal times."""
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
