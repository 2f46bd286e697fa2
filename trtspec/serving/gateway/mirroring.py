# SPDX-License-Identifier: Apache-2.0
"""Mirror traffic: finished requests are sent again to a candidate revision, and the outputs are compared.

Clients never wait for mirrored requests. Few run at a time, and none while the gateway is busy; skipped ones are
counted. Completions are compared by digest and not stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trtspec.serving.gateway.completions import CompletionJob, Completions, is_greedy
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.routing_state import MirrorStats

log = logging.getLogger(__name__)

MAX_CONCURRENT = 4  # mirrored requests in progress
MAX_PAIRS = 1000  # latency pairs kept


@dataclass(frozen=True)
class CompletionResult:
    """The outcome of a request: digests of its completions, seconds and token counts."""

    digests: tuple[bytes, ...]
    seconds: float
    drafted: int
    accepted: int

    @classmethod
    def of(cls, job: CompletionJob, seconds: float) -> CompletionResult:
        """Return the outcome of a finished job."""
        texts = job.grown
        drafted, accepted = sum(text.drafted for text in texts), sum(text.accepted for text in texts)
        return cls(tuple(text.digest for text in texts), seconds, drafted, accepted)


class TrafficMirror:
    """Mirrors `share` percent of the other revisions' requests to one revision, unless `is_busy` returns True."""

    def __init__(self, completions: Completions, is_busy: Callable[[], bool]) -> None:
        self.share = 0
        self._completions, self._is_busy = completions, is_busy
        self._seen, self._answered = MirrorStats(), 0
        self._pairs: deque[tuple[float, float]] = deque(maxlen=MAX_PAIRS)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def seen(self) -> MirrorStats:
        """Return the statistics so far."""
        old_s, new_s = zip(*self._pairs, strict=True) if self._pairs else ((), ())
        return replace(self._seen, old_s=old_s, new_s=new_s)

    def offer(self, body: dict[str, Any], job: CompletionJob, baseline: CompletionResult) -> None:
        """Mirror a finished request if its turn has come and there is capacity; does not block."""
        self._answered += 1
        if (self._answered * self.share) // 100 == ((self._answered - 1) * self.share) // 100:
            return
        if len(self._tasks) >= MAX_CONCURRENT or self._is_busy():
            self._seen = replace(self._seen, dropped=self._seen.dropped + 1)
            return
        task = asyncio.ensure_future(self._send(body, job.chat, is_greedy(job.asked), baseline))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Cancel the mirrored requests in progress without counting them, so that a rollback need not wait."""
        for task in self._tasks:
            task.cancel()

    async def _send(self, body: dict[str, Any], chat: bool, greedy: bool, baseline: CompletionResult) -> None:
        try:
            job = await self._completions.read(body, chat=chat)
            began = time.monotonic()
            await self._completions.generate_silent(job)
        except ApiError as error:
            self._fail(error.message)
        except Exception as error:
            log.exception("a mirrored request failed")
            self._fail(type(error).__name__)
        else:
            self._compare(baseline, CompletionResult.of(job, time.monotonic() - began), greedy)

    def _fail(self, message: str) -> None:
        self._seen = replace(self._seen, sent=self._seen.sent + 1, failed=self._seen.failed + 1, said=message)

    def _compare(self, old: CompletionResult, new: CompletionResult, greedy: bool) -> None:
        seen = self._seen
        self._pairs.append((old.seconds, new.seconds))
        self._seen = replace(
            seen,
            sent=seen.sent + 1,
            compared=seen.compared + (len(old.digests) if greedy else 0),
            different=seen.different + (_differing(old, new) if greedy else 0),
            drafted=seen.drafted + old.drafted,
            accepted=seen.accepted + old.accepted,
            new_drafted=seen.new_drafted + new.drafted,
            new_accepted=seen.new_accepted + new.accepted,
        )


def _differing(old: CompletionResult, new: CompletionResult) -> int:
    return sum(one != other for one, other in zip(old.digests, new.digests, strict=True))
