# SPDX-License-Identifier: Apache-2.0
"""Requests that were answered, sent once more to a revision on trial: what it says is compared and thrown away.

No client waits for it: a request goes there when its answer is whole. Few are under way at once, none where the clients
keep the entry busy; those that would have been are counted. Of texts only digests are compared, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trtspec.serving.gateway.completions import Completions, Job, is_greedy
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.routing_state import Shadowed

log = logging.getLogger(__name__)

MOST = 4  # under way at once
KEPT = 1000  # pairs of seconds


@dataclass(frozen=True)
class Told:
    """What a client got, or would have got: digests of its texts, the seconds they took, tokens."""

    digests: tuple[bytes, ...]
    seconds: float
    drafted: int
    accepted: int

    @classmethod
    def of(cls, job: Job, seconds: float) -> Told:
        """Return what became of a job that is done."""
        texts = job.grown
        drafted, accepted = sum(text.drafted for text in texts), sum(text.accepted for text in texts)
        return cls(tuple(text.digest for text in texts), seconds, drafted, accepted)


class Shadow:
    """A revision that gets `share` percent of the others' requests as well; `is_busy` says that clients need all."""

    def __init__(self, completions: Completions, is_busy: Callable[[], bool]) -> None:
        self.share = 0
        self._completions, self._is_busy = completions, is_busy
        self._seen, self._answered = Shadowed(), 0
        self._pairs: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def seen(self) -> Shadowed:
        """Return what came of it so far."""
        old_s, new_s = zip(*self._pairs, strict=True) if self._pairs else ((), ())
        return replace(self._seen, old_s=old_s, new_s=new_s)

    def offer(self, body: dict[str, Any], job: Job, told: Told) -> None:
        """Send a request that was answered, if it is its turn and there is room; returns at once."""
        self._answered += 1
        if (self._answered * self.share) // 100 == ((self._answered - 1) * self.share) // 100:
            return
        if len(self._tasks) >= MOST or self._is_busy():
            self._seen = replace(self._seen, dropped=self._seen.dropped + 1)
            return
        task = asyncio.ensure_future(self._send(body, job.chat, is_greedy(job.asked), told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """End what is under way, which is not counted; nobody waits for it, least of all a rollback."""
        for task in self._tasks:
            task.cancel()

    async def _send(self, body: dict[str, Any], chat: bool, greedy: bool, told: Told) -> None:
        try:
            job = await self._completions.read(body, chat=chat)
            began = time.monotonic()
            await self._completions.make_unheard(job)
        except ApiError as error:
            self._fail(error.message)
        except Exception as error:
            log.exception("a shadow failed")
            self._fail(type(error).__name__)
        else:
            self._compare(told, Told.of(job, time.monotonic() - began), greedy)

    def _fail(self, said: str) -> None:
        self._seen = replace(self._seen, sent=self._seen.sent + 1, failed=self._seen.failed + 1, said=said)

    def _compare(self, old: Told, new: Told, greedy: bool) -> None:
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


def _differing(old: Told, new: Told) -> int:
    return sum(one != other for one, other in zip(old.digests, new.digests, strict=True))
