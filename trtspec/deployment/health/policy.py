# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a server by what was seen of it, and when it is started again. Pure: no clock, no process.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from trtspec.serving.triton.names import DRAFT

STOPPED_S = 2.0  # a process that is stopped for longer was not only looked at
SILENT_S = 3.0  # no answer, and nothing computes one
BUSY_S = 600.0  # no answer, and something computes: a long text before this one, or a loop without end
DIED, STOPPED = "the process of {} died", "the process of {} is stopped"
COMPUTES = 0.3  # of the looks at a server that has to do something
REFUSALS = 3  # in a row
MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Look:
    """What one look at a server saw.

    `ended` is its exit status, `died` are the models whose processes are gone while the server says that they are
    ready, `stopped` what gets no processor. `waits_since` is when the question was asked that has no answer yet, None
    where all are answered; `is_full` says that the last one was refused because of that. `refusals` is how many of the
    last were answered with another error, and `said` with which. `computes` is whether any thread ran or waited for a
    processor.
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
class Waiting:
    """Since when a server answers nothing, by one question after the other; None where the last one was answered.

    Word that it is full is no answer, unless it has got on with what it is full of since the word before.
    """

    since: float | None = None
    is_full: bool = False
    _progress: int | None = None

    def asked(self, now: float) -> None:
        """Note a question."""
        self.since = now if self.since is None else self.since

    def answered(self) -> None:
        """Note that there is an answer, be it an error."""
        self.since, self.is_full, self._progress = None, False, None

    def refused_as_full(self, now: float, progress: int | None) -> None:
        """Note that it is full; `progress` counts what it has done so far, None where it does not say."""
        if progress is not None:
            if self._progress is not None and progress != self._progress:
                self.since = now
            self._progress = progress
        self.is_full = True


@dataclass
class Judge:
    """Says what is wrong, by one look after the other; a process may be stopped for `stopped_s`."""

    stopped_s: float = STOPPED_S
    _stopped_since: dict[str, float] = field(default_factory=dict)
    _waits_since: float | None = None
    _looks: int = 0
    _computing: int = 0

    def fault(self, look: Look) -> str:
        """Return what is wrong, in words; "" where nothing is known to be."""
        self._note(look)
        if look.ended is not None:
            return f"the server ended by itself with status {look.ended}"
        if look.died:
            return DIED.format(", ".join(sorted(look.died)))
        if still := [name for name, since in self._stopped_since.items() if look.time - since >= self.stopped_s]:
            return STOPPED.format(", ".join(sorted(still)))
        if look.refusals >= REFUSALS:
            return f"a request for one token was refused {look.refusals} times: {look.said}"
        return self._silence(look)

    def _note(self, look: Look) -> None:
        self._stopped_since = {name: self._stopped_since.get(name, look.time) for name in look.stopped}
        if look.waits_since != self._waits_since:
            self._waits_since, self._looks, self._computing = look.waits_since, 0, 0
        self._looks += 1
        self._computing += look.computes

    def _silence(self, look: Look) -> str:
        """Return that it hangs. One that has much to do answers late: its threads run, or wait for a processor."""
        if look.waits_since is None:
            return ""
        waited, computes = look.time - look.waits_since, self._computing > COMPUTES * self._looks
        if waited < (BUSY_S if computes else SILENT_S):
            return ""
        silent = "is refused as one too many, and no other gets on," if look.is_full else "has no answer"
        return f"a request for one token {silent} since {waited:.0f} s" + ("" if computes else ", and nothing runs")


def leaves_target(fault: str) -> bool:
    """Return whether a fault is of a draft's process alone, without which the target goes on with every text."""
    return fault in (DIED.format(DRAFT), STOPPED.format(DRAFT))


@dataclass
class Restarts:
    """Restart policy: immediately, then with exponential back-off up to `longest_s`.

    A server that never came up is given up after `at_most` restarts. One that came up once is started again for ever:
    the cause of its death may be a request, and whoever sends it is not to end the deployment.
    """

    at_most: int = 5
    within_s: float = 300.0
    first_s: float = 1.0
    longest_s: float = 30.0
    came_up: bool = False
    _failed: list[float] = field(default_factory=list)

    def delay(self, now: float) -> float | None:
        """Note a failure; returns the seconds until the next start, None to give up."""
        self._failed = [*(time for time in self._failed if now - time < self.within_s), now]
        before = len(self._failed) - 1
        if before >= self.at_most and not self.came_up:
            return None
        return min(self.longest_s, self.first_s * 2.0 ** min(before - 1, MOST_DOUBLINGS)) if before else 0.0
