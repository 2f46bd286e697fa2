# SPDX-License-Identifier: Apache-2.0
"""Failure detection from health samples, and the restart policy. Pure functions of time: no clock, no processes.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from trtspec.serving.triton.names import DRAFT

STOPPED_S = 2.0  # a debugger or tracer stops a process for less time
SILENT_S = 3.0  # no answer, and no thread is computing
BUSY_S = 600.0  # no answer while a thread computes: an earlier long text, or an endless loop
DIED, STOPPED = "the process of {} died", "the process of {} is stopped"
COMPUTES = 0.3  # fraction of samples in which a busy server computes
REFUSALS = 3  # consecutive
MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class HealthSample:
    """One health sample of a server.

    Attributes:
        ended: exit status, None while the server runs.
        died: models whose processes are gone while the server reports them ready.
        stopped: processes in the stopped state.
        waits_since: start of the pending probe request, if any.
        computes: whether any thread ran or waited for a processor.
        refusals: number of consecutive probe requests that failed for a reason other than a full queue.
        said: the last failure's message.
        is_full: whether the pending probe was last rejected because the queue is full.
    """

    time: float
    ended: int | None = None
    died: Collection[str] = ()
    stopped: Collection[str] = ()
    waits_since: float | None = None
    computes: bool = False
    refusals: int = 0
    said: str = ""
    is_full: bool = False


@dataclass
class PendingProbe:
    """The time since which probe requests, sent one after another, are unanswered, or None after an answer.

    A queue-full reply counts as progress only if the server's counters moved since the previous one.
    """

    since: float | None = None
    is_full: bool = False
    _progress: int | None = None

    def record_request(self, now: float) -> None:
        """Record a probe request."""
        self.since = now if self.since is None else self.since

    def record_answer(self) -> None:
        """Record an answer, even an error."""
        self.since, self.is_full, self._progress = None, False, None

    def refused_as_full(self, now: float, progress: int | None) -> None:
        """Record a queue-full reply; `progress` is the server's work counter, None if not reported."""
        if progress is not None:
            if self._progress is not None and progress != self._progress:
                self.since = now
            self._progress = progress
        self.is_full = True


@dataclass
class FailureDetector:
    """Detects failures from consecutive health samples; tolerates processes stopped for less than `stopped_s`."""

    stopped_s: float = STOPPED_S
    _stopped_since: dict[str, float] = field(default_factory=dict)
    _waits_since: float | None = None
    _looks: int = 0
    _computing: int = 0

    def fault(self, look: HealthSample) -> str:
        """Return a description of the failure; "" if none is detected."""
        self._note(look)
        if look.ended is not None:
            return f"the server exited with status {look.ended}"
        if look.died:
            return DIED.format(", ".join(sorted(look.died)))
        if still := [name for name, since in self._stopped_since.items() if look.time - since >= self.stopped_s]:
            return STOPPED.format(", ".join(sorted(still)))
        if look.refusals >= REFUSALS:
            return f"a request for one token failed {look.refusals} times: {look.said}"
        return self._silence(look)

    def _note(self, look: HealthSample) -> None:
        self._stopped_since = {name: self._stopped_since.get(name, look.time) for name in look.stopped}
        if look.waits_since != self._waits_since:
            self._waits_since, self._looks, self._computing = look.waits_since, 0, 0
        self._looks += 1
        self._computing += look.computes

    def _silence(self, look: HealthSample) -> str:
        """Return a description of a hang. A busy server, whose threads are running or runnable, gets BUSY_S."""
        if look.waits_since is None:
            return ""
        waited, computes = look.time - look.waits_since, self._computing > COMPUTES * self._looks
        if waited < (BUSY_S if computes else SILENT_S):
            return ""
        silent = "found a full queue without progress" if look.is_full else "has been unanswered"
        return f"a request for one token {silent} for {waited:.0f} s" + (
            "" if computes else ", and no thread is running"
        )


def is_draft_failure(fault: str) -> bool:
    """Return whether only the drafter's process failed; the target then continues all texts."""
    return fault in (DIED.format(DRAFT), STOPPED.format(DRAFT))


@dataclass
class RestartPolicy:
    """Restart policy: immediately, then with exponential back-off up to `longest_s`.

    A server that never came up is abandoned after `at_most` restarts. One that came up is restarted indefinitely,
    because a single client's requests may be the cause and must not end the deployment.
    """

    at_most: int = 5
    within_s: float = 300.0
    first_s: float = 1.0
    longest_s: float = 30.0
    came_up: bool = False
    _failed: list[float] = field(default_factory=list)

    def delay(self, now: float) -> float | None:
        """Record a failure and return the seconds until the next start, or None to give up."""
        self._failed = [*(time for time in self._failed if now - time < self.within_s), now]
        before = len(self._failed) - 1
        if before >= self.at_most and not self.came_up:
            return None
        return min(self.longest_s, self.first_s * 2.0 ** min(before - 1, MOST_DOUBLINGS)) if before else 0.0
