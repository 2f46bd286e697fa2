# SPDX-License-Identifier: Apache-2.0
"""Arrival processes: when requests of a round are sent, and which metric compares the arms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, ClassVar

# SPDX-License-Identifier: Apache-2.0


Ask = Callable[[int, float], Awaitable[None]]  # (number in the round, scheduled time by the clock)
THROUGHPUT, LATENCY = "output_tokens_per_s", "mean_e2e_ms"
LARGER_IS_BETTER = {THROUGHPUT: True, LATENCY: False}


class ArrivalProcess(ABC):
    """An arrival process; each kind is a frozen dataclass in a module of `arrivals/`, whose fields are its parameters.

    A closed loop saturates the server, so the arms are compared by tokens per second. An open loop sends requests at
    given times, so they are compared by latency.
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
        """Send each request of a round at its time, and return when all responses are complete."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON fields, which also match the points of two documents."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # each kind is a dataclass
