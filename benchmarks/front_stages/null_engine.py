# SPDX-License-Identifier: Apache-2.0
"""An engine that computes nothing: it emits the next tokens of a given text for every request at each step.

The time of each emission is written to a file that the clients read, at the place of the request's seed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_STEPS = 4096  # of one request


@dataclass(frozen=True)
class Steps:
    """What a null engine emits, and when.

    Attributes:
        tokens_per_step: tokens of each request and step.
        step_s: seconds from one step to the next; 0 for steps without a pause.
        clock: file with the times of emissions, [streams, MAX_STEPS] float64 seconds of the monotonic clock.
        text: the token ids to emit, repeated.
    """

    tokens_per_step: int
    step_s: float
    clock: str
    text: tuple[int, ...]

    @classmethod
    def parse(cls, document: str) -> Steps:
        found = json.loads(document)
        return cls(**{**found, "text": tuple(found["text"])})

    def times(self) -> npt.NDArray[np.float64]:
        """Return the times of emissions, shared with all processes that open them."""
        return np.asarray(np.memmap(self.clock, np.float64, "r+")).reshape(-1, MAX_STEPS)

    def parts(self, count: int) -> Iterator[tuple[int, ...]]:
        """Yield the tokens of each step of a request of `count` tokens."""
        text = self.text * -(-count // len(self.text))
        for at in range(0, count, self.tokens_per_step):
            yield text[at : min(at + self.tokens_per_step, count)]


class Ticker:
    """Wakes all waiting requests together at each step, if there are any; use it inside one event loop."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._waiting: list[asyncio.Future[None]] = []
        self._is_needed = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def step(self) -> None:
        """Wait for the next step."""
        step = asyncio.get_running_loop().create_future()
        self._waiting.append(step)
        self._is_needed.set()
        await step

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._step_s, time.monotonic() - 1)  # it catches up with steps of the last second
            if (pause_s := due - time.monotonic()) > 0:
                await asyncio.sleep(pause_s)
            await self._is_needed.wait()  # unbounded: until the next request
            self._is_needed.clear()
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)
            await asyncio.sleep(0)  # all that were woken wait again


class NullEngine:
    """Emits the steps of all requests; use it inside one event loop."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._times, self._ticker = steps, steps.times(), Ticker(steps.step_s)

    async def generate(self, seed: int, count: int) -> AsyncIterator[tuple[int, ...]]:
        """Yield the tokens of each step of a request of `count` tokens."""
        times = self._times[seed % len(self._times)]
        for at, ids in enumerate(self._steps.parts(count)):
            await self._ticker.step()
            times[at % MAX_STEPS] = time.monotonic()
            yield ids
