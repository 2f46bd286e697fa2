# SPDX-License-Identifier: Apache-2.0
"""The description of a kind of load: when the requests of a round are due, and what its arms are judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, ClassVar

Ask = Callable[[int, float], Awaitable[None]]  # (number in the round, when it is due by the clock)
THROUGHPUT, LATENCY = "output_tokens_per_s", "mean_e2e_ms"
LARGER_IS_BETTER = {THROUGHPUT: True, LATENCY: False}


class Load(ABC):
    """A load; a module of `loads/` has one kind, a frozen dataclass whose fields are its size.

    A closed loop gives a server as much as it takes, so that the tokens a second tell. An open one gives it what was
    drawn, so that the latencies do.
    """

    kind: ClassVar[str]
    judged_by: ClassVar[str]

    @property
    @abstractmethod
    def requests_a_round(self) -> int:
        """Return how many requests a round has unless it is told."""

    @property
    def places(self) -> int | None:
        """Return how many requests there are at once, each followed by the next; None where they come by themselves."""
        return None

    @abstractmethod
    async def run(self, ask: Ask, requests: int, seed: int) -> None:
        """Ask each request of a round when it is due, and return when all are answered."""

    def as_dict(self) -> dict[str, Any]:
        """Return its part of the document, by which points of two documents are matched."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # each kind is a dataclass
