# SPDX-License-Identifier: Apache-2.0
"""Health of a server: observations of its processes and answers, failure detection, and the restart policy.

`FailureDetector` and `RestartPolicy` are pure: they use neither a clock nor processes. All times are seconds of one
monotonic clock.

`python3 -m trtspec.deployment.health NAME --within SECONDS` is the health probe of a container: it requests one text
from a live deployment. Triton's readiness is not sufficient: it reports ready with dead models, and briefly not ready
after a successful reload. A queue-full reply counts as healthy. If the server hangs with a full queue, the supervisor,
which observes its threads and counters, moves the deployment out of `live`, and this probe fails.
"""

from __future__ import annotations

import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.processes import (
    group_processes,
    group_zombies,
    is_alive,
    is_computing,
    process_argv,
    process_state,
    start_time,
)
from trtspec.deployment.journal import DeploymentJournal
from trtspec.serving.front import UNAVAILABLE_MESSAGE
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.names import DRAFT

STOPPED_S = 2.0  # longer than a debugger or tracer stops a process
SILENT_S = 3.0  # time limit without an answer while no thread computes
BUSY_S = 600.0  # time limit without an answer while a thread computes: an earlier long text, or an endless loop
DIED, STOPPED = "the process of {} died", "the process of {} is stopped"
COMPUTES = 0.3  # fraction of samples in which a busy server computes
REFUSALS = 3  # consecutive failures that count as a fault
MOST_DOUBLINGS = 30

PROMPT = "Hello"
STUB = "triton_python_backend_stub"
SERVER = "tritonserver"
ASK_EVERY_S = 1.0
LONGEST_ANSWER_S = 3600.0
READY_TIMEOUT_S = 1.0
UNOBSERVED_MODEL = "a model"  # name for a model whose process ended before it was observed
GONE_S = 1.0  # maximum gap between two processes of a loading model
QUEUE_FULL = ("the server answered 429", "the server answered 503")


@dataclass(frozen=True)
class HealthSample:
    """One observation of a server's health.

    Attributes:
        ended: exit status, or None while the server runs.
        died: models whose processes are gone while the server reports them ready.
        stopped: names of processes in the stopped state.
        waits_since: start of the pending probe request, or None.
        computes: true if any thread ran or waited for a processor.
        refusals: number of consecutive probe requests that failed for a reason other than a full queue.
        said: the last failure's message.
        is_full: true if the pending probe was last rejected because the queue is full.
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
    """The time since which consecutive probe requests are unanswered; `since` is None after an answer.

    A queue-full reply counts as progress only if the server's counters moved since the previous one.
    """

    since: float | None = None
    is_full: bool = False
    _progress: int | None = None

    def record_request(self, now: float) -> None:
        self.since = now if self.since is None else self.since

    def record_answer(self) -> None:
        """Record an answer, which may be an error."""
        self.since, self.is_full, self._progress = None, False, None

    def refused_as_full(self, now: float, progress: int | None) -> None:
        """Record a queue-full reply; `progress` is the server's work counter, or None if not reported."""
        if progress is not None:
            if self._progress is not None and progress != self._progress:
                self.since = now
            self._progress = progress
        self.is_full = True


@dataclass
class FailureDetector:
    """Detects failures in consecutive health samples; processes may be stopped for less than `stopped_s`."""

    stopped_s: float = STOPPED_S
    _stopped_since: dict[str, float] = field(default_factory=dict)
    _waits_since: float | None = None
    _looks: int = 0
    _computing: int = 0

    def fault(self, look: HealthSample) -> str:
        """Add a sample and return a description of the failure; "" if none is detected."""
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
        """Return a description of a hang, or "".

        If threads are running or runnable, the server is busy, and the time limit is BUSY_S instead of SILENT_S.
        """
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
    """Return True if only the drafter's process failed; the target then continues all texts alone."""
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


def request_text(url: str, timeout_s: float, max_tokens: int = 1) -> None:
    """Request a short text from a server; raises DeployError if that fails, StepTimeout after `timeout_s` seconds."""
    answer = Client.at(url, timeout_s).generate({"text_input": PROMPT, "max_tokens": max_tokens})
    if "text_output" not in answer:
        raise DeployError(f"the response lacks text_output, it has {', '.join(sorted(answer))}")


def _is_queue_full(message: str) -> bool:
    return message.startswith(QUEUE_FULL) and UNAVAILABLE_MESSAGE not in message


class RequestProbe:
    """Requests one token repeatedly in a thread, one request at a time so that it adds little load.

    `answered` is set after the first text.
    """

    def __init__(self, url: str, answer_s: float = LONGEST_ANSWER_S, *, at_once: bool = False) -> None:
        self.waiting, self.answered = PendingProbe(), threading.Event()
        self.refusals, self.said = 0, ""
        self._url, self._answer_s, self._statistics = url, answer_s, Client.at(url, READY_TIMEOUT_S)
        self._over = threading.Event()
        threading.Thread(target=self._run, args=(at_once,), name="probe", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self, at_once: bool) -> None:
        while at_once or not self._over.wait(ASK_EVERY_S):
            at_once = False
            self.waiting.record_request(time.monotonic())
            try:
                request_text(self._url, self._answer_s)
            except TrtspecError as error:
                self._refused(error.message)
            else:
                self.refusals = 0
                self.waiting.record_answer()
                self.answered.set()

    def _refused(self, said: str) -> None:
        if _is_queue_full(said):
            self.refusals = 0
            self.waiting.refused_as_full(time.monotonic(), self._progress())
        else:
            self.said = said
            self.refusals += 1
            self.waiting.record_answer()

    def _progress(self) -> int | None:
        try:
            return count_progress(self._statistics.statistics())
        except TrtspecError:
            return None


def count_progress(statistics: Mapping[str, Any]) -> int | None:
    """Return the number of executed and answered requests plus sent responses of a server's models.

    `statistics` is Triton's model statistics document. Rejected requests are not counted. Return None for statistics in
    another format.
    """
    try:
        done: int = sum(
            model["execution_count"]
            + model["inference_stats"]["success"]["count"]
            + sum(each["success"]["count"] for each in model.get("response_stats", {}).values())
            for model in statistics["model_stats"]
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return done


ModelProcesses = dict[tuple[int, int | None], str]  # (pid, start time) to model


class StartupProbe:
    """Observes the processes of a server that is loading its models, without sending requests."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.stubs: ModelProcesses = {}
        self._gone: dict[str, float] = {}  # models without a process, and since when

    def sample(self, *, is_ready: bool) -> HealthSample:
        """Return a health sample of a running server.

        A model may have several processes in turn while it loads. It has died if no new one starts within GONE_S, or if
        the server reports ready without it: tritonserver waits forever for a process that was killed during loading.
        """
        pids, now = group_processes(self._pid), time.monotonic()
        running = model_processes(pids)
        gone = {*self.stubs.values()} - {*running.values()}
        if {*group_zombies(self._pid, STUB)} - {pid for pid, _ in self.stubs}:
            gone.add(UNOBSERVED_MODEL)
        self._gone = {model: self._gone.get(model, now) for model in gone}
        died = {model for model, since in self._gone.items() if is_ready or now - since >= GONE_S}
        self.stubs = running if is_ready and not died else self.stubs | running
        return HealthSample(now, died=died, stopped=stopped_processes(pids))


class LivenessProbe:
    """Observes a server's process group and its answers; `stubs` are the known processes of models."""

    def __init__(self, pid: int, url: str, stubs: ModelProcesses) -> None:
        self._pid = pid
        self._client = Client.at(url, READY_TIMEOUT_S)
        self._prober = RequestProbe(url)
        self._stubs = {**stubs}

    def close(self) -> None:
        self._prober.close()

    def sample(self, ended: int | None) -> HealthSample:
        """Return a health sample; `ended` is the server's exit status, or None while it runs."""
        pids = group_processes(self._pid)
        self._stubs |= model_processes(pids)
        waits_since = self._prober.waiting.since
        return HealthSample(
            time.monotonic(),
            ended,
            self._died() if ended is None else (),
            stopped_processes(pids),
            waits_since,
            waits_since is not None and any(is_computing(pid) for pid in pids),
            self._prober.refusals,
            self._prober.said,
            self._prober.waiting.is_full,
        )

    def _died(self) -> list[str]:
        """Return the models whose process is gone although they were not unloaded."""
        gone = {process: model for process, model in self._stubs.items() if not is_alive(*process)}
        died = [model for model in gone.values() if self._client.is_ready(model)]
        for process, model in gone.items():
            if model not in died:
                del self._stubs[process]
        return died


def model_processes(pids: Iterable[int]) -> ModelProcesses:
    return {(pid, start_time(pid)): model for pid in pids if (model := process_model(pid))}


def stopped_processes(pids: Iterable[int]) -> tuple[str, ...]:
    """Return the names of a server's processes in the stopped state."""
    return tuple(process_model(pid) or SERVER for pid in pids if process_state(pid) == "T")


def process_model(pid: int) -> str:
    """Return the model that a Python stub runs (argv: STUB FOLDER/MODEL/VERSION/model.py ...); "" for others."""
    argv = process_argv(pid)
    return Path(argv[1]).parent.parent.name if len(argv) > 1 and argv[0].endswith(STUB) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the health probe; return 0 for a text or a queue-full reply, else print the error and return 1."""
    parser = ArgumentParser(prog="trtspec.deployment.health")
    parser.add_argument("name")
    parser.add_argument("--within", type=float, default=10.0, help="seconds")
    options = parser.parse_args(arguments)
    try:
        record = DeploymentJournal(options.name).read_existing()
        if record.state != "live":
            raise DeployError(f"{options.name} is {record.state}, not live")
        request_text(record.endpoints["http"], options.within)
    except TrtspecError as error:
        if isinstance(error, DeployError) and _is_queue_full(error.message):
            return 0
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
