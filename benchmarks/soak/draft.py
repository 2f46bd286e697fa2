# SPDX-License-Identifier: Apache-2.0
"""Fault injection for a separate draft model: its process is killed, stopped and slowed during streams.

The repository has the layout of TensorRT-LLM's engines, `tensorrt_llm_bls` with two models, and the torch engine serves
the same tensors. This process acts as the external supervisor of the models: it reloads a draft whose process is gone.
The server is supervised as in a deployment: if it exits by itself, it is restarted and counted.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks.soak.asking import TritonEntry
from benchmarks.soak.asks import greedy
from benchmarks.soak.kept import Kept, Restart, kept
from benchmarks.soak.load import DIFFERS, Known, Record, Turn, alone, by, load, summary
from benchmarks.soak.parts import Options, Report
from benchmarks.soak.progress import Progress, say
from tests.serving.triton.serving import Served
from tests.serving.triton.two_models import DRAFT_LEN, DRAFT_TIMEOUT_S, draft_process, make_pair, metric, reload
from trtspec.core.processes import is_alive, start_time, wait_until
from trtspec.deployment.log import tail

KINDS = ("killed", "stopped", "slowed")
STREAMS, ASKS = 6, 48
DEADLINE_S = 60.0  # per text
OPENS_S = ENDS_S = 60.0
HEALS_S = 90.0
GONE = (OSError, grpc.RpcError, AssertionError)  # errors of requests to a server that exits
NOTICED_S = 1.0  # from the exit of a server to its detection
DRAFTED, OPEN, FALLBACKS = "trtspec_drafted_tokens_total", "trtspec_breaker_open", "trtspec_fallbacks_total"


@dataclass
class Fault:
    """One fault and its outcome; times are of the monotonic clock, None if not observed."""

    kind: str
    at: float
    opened_s: float | None = None  # until the circuit breaker was open
    back_at: float | None = None  # when the draft's process could respond again
    healed_at: float | None = None  # when drafting resumed
    fallbacks: float = 0.0
    reloaded: bool = False
    ended_server: bool = False


def run(options: Options, report: Report) -> None:
    """Run the part and fill the report."""
    pair = make_pair(options.place / "pair")
    with kept(pair, pair / "models") as server:
        known = alone(
            [TritonEntry(server.served.client.where)],
            greedy(6 if options.short else ASKS, options.seed, DRAFT_LEN),
            DEADLINE_S,
        )
        records: Sequence[Record] = ()
        faults: list[Fault] = []
        try:
            with load(STREAMS, chooser(known), seed=options.seed, within_s=DEADLINE_S) as records:
                hurt_all(options, server, draft_of(pair), faults)
        finally:
            tell(report, faults, records, server.restarts())
            if server.restarts() or not all(fault.healed_at for fault in faults):
                say(f"draft: end of the server's log:\n{tail(server.served.log)}")
    report.complete = len(faults) == options.count


def draft_of(pair: Any) -> Callable[[], int]:
    return lambda: draft_process(pair)


def hurt_all(options: Options, server: Kept, draft: Callable[[], int], faults: list[Fault]) -> None:
    """Inject the faults in random order at random times; stop at the first one that does not recover."""
    chance, progress = random.Random(f"faults {options.seed}"), Progress("draft")
    kinds = [KINDS[number % len(KINDS)] for number in range(options.count)]
    chance.shuffle(kinds)
    for number, kind in enumerate(kinds):
        time.sleep(chance.uniform(0.2, 1.5))
        fault = Fault(kind, time.monotonic())
        try:
            hurt(server.served, draft, fault, chance)
        except GONE as error:
            say(f"draft: the server does not respond: {error}")
            if server.is_back():
                heal(server.served, fault, 0)
            fault.ended_server = any(each.at > fault.at for each in server.restarts())
        faults.append(fault)
        if fault.healed_at is None:
            say(f"draft: no recovery from fault {number + 1}, {kind}")
            return
        progress.tell((number + 1) / len(kinds), f"fault {number + 1} of {len(kinds)}")


def hurt(served: Served, draft: Callable[[], int], fault: Fault, chance: random.Random) -> None:
    """Inject one fault, check that the circuit breaker opens if it should, and wait until drafting resumes."""
    process, before = draft(), metric(served, FALLBACKS)
    started = start_time(process)
    if fault.kind == "slowed":
        slow(process, chance)
    else:
        os.kill(process, signal.SIGKILL if fault.kind == "killed" else signal.SIGSTOP)
        if wait_until(lambda: metric(served, OPEN) == 1, OPENS_S):
            fault.opened_s = time.monotonic() - fault.at
        wait_until(lambda: not is_alive(process, started), ENDS_S)
    if not is_alive(process, started):
        reload(served)
        fault.reloaded = True
    heal(served, fault, metric(served, DRAFTED))
    fault.fallbacks = metric(served, FALLBACKS) - before


def heal(served: Served, fault: Fault, drafted: float) -> None:
    """Wait until more tokens are drafted after the draft is back."""
    fault.back_at = time.monotonic()
    if wait_until(lambda: metric(served, OPEN) == 0 and metric(served, DRAFTED) > drafted, HEALS_S):
        fault.healed_at = time.monotonic()


def slow(process: int, chance: random.Random) -> None:
    """Pause a process periodically; its supervisor may end it."""
    end = time.monotonic() + chance.uniform(1.5, 4.0)
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(process, signal.SIGSTOP)
            time.sleep(chance.uniform(0.05, 0.9))
            os.kill(process, signal.SIGCONT)
            time.sleep(chance.uniform(0.05, 0.3))


def chooser(known: Sequence[Known]) -> Callable[[random.Random], Turn]:
    return lambda chance: Turn(chance.choice(known), chance.random() < 0.7)


def tell(report: Report, faults: Sequence[Fault], records: Sequence[Record], restarts: Sequence[Restart]) -> None:
    """Record the outcome of requests and faults by kind of fault, separately for exits of the server."""
    met = [record for record in records if any(falls(record, each) for each in restarts)]
    others = [record for record in records if record not in met]
    undisturbed = [record for record in others if not any(meets(record, fault) for fault in faults)]
    report.settings |= {"streams": STREAMS, "deadline_s": DEADLINE_S, "draft_timeout_s": DRAFT_TIMEOUT_S}
    report.found |= {
        "faults": len(faults),
        "requests": summary(others),
        "kinds": {kind: told(kind, faults, others) for kind in KINDS},
        "undisturbed": summary(undisturbed),
        "server_ended": ended(restarts, met),
    }
    broken = [fault for fault in faults if fault.kind != "slowed" and not fault.ended_server]
    report.checks |= {
        "every_request_answered_in_time": bool(records) and report.found["requests"]["failures"] == 0,
        "every_text_the_same": not any(record.problem == DIFFERS for record in records),
        "in_midst_of_requests": all(any(meets(record, fault) for record in records) for fault in faults),
        "breaker_opens_and_is_counted": all(fault.opened_s and fault.fallbacks for fault in broken),
        "heals": all(fault.healed_at for fault in faults),
    }


def falls(record: Record, restart: Restart) -> bool:
    """Return whether a request was open when the server exited, or was sent before the server was back."""
    return record.begun < restart.back and record.ended > restart.at - NOTICED_S


def ended(restarts: Sequence[Restart], met: Sequence[Record]) -> dict[str, Any]:
    """Return how often the server exited, and the number of affected requests: open ones, and later ones."""
    begun = [max((each.at for each in restarts if falls(record, each)), default=0) - NOTICED_S for record in met]
    opened = [record for record, at in zip(met, begun, strict=True) if record.begun < at]
    return {
        "times": len(restarts),
        "reasons": by(restarts, lambda restart: restart.reason),
        "seconds_away": [round(each.back - each.at, 2) for each in restarts],
        "open_requests": len(opened),
        "open_requests_answered": sum(not record.problem for record in opened),
        "requests_meanwhile": len(met) - len(opened),
        "requests_meanwhile_answered": sum(not record.problem for record in met if record not in opened),
    }


def meets(record: Record, fault: Fault) -> bool:
    """Return whether a request was open between a fault and its recovery."""
    return record.ended > fault.at and (fault.healed_at is None or record.begun < fault.healed_at)


def told(kind: str, faults: Sequence[Fault], records: Sequence[Record]) -> dict[str, Any]:
    mine = [fault for fault in faults if fault.kind == kind]
    healed = [fault for fault in mine if fault.healed_at is not None]
    return summary([record for record in records if any(meets(record, fault) for fault in mine)]) | {
        "faults": len(mine),
        "loaded_again": sum(fault.reloaded for fault in mine),
        "fallbacks": round(sum(fault.fallbacks for fault in mine)),
        "seconds_until_breaker_opens": rounded(fault.opened_s for fault in mine),
        "seconds_until_healed": rounded((fault.healed_at or 0) - fault.at for fault in healed),
        "of_that_after_the_draft_was_back": rounded((fault.healed_at or 0) - (fault.back_at or 0) for fault in healed),
    }


def rounded(seconds: Iterable[float | None]) -> list[float]:
    return [round(each, 2) for each in seconds if each is not None]
