# SPDX-License-Identifier: Apache-2.0
"""A load benchmark from its addresses to its points."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from trtspec.bench.load.arrival import Load
from trtspec.bench.load.client import Endpoint, LoadClient, load_client
from trtspec.bench.load.discovery import AUTO, KEY_VARIABLE, ensure_answers, find_endpoint, target_alone
from trtspec.bench.load.sweep import BASELINE, SERVED, Effort, OnProgress, Sweep, Swept
from trtspec.bench.load.workload import Workload
from trtspec.core.errors import GateNotMet
from trtspec.core.registry import find

T = TypeVar("T")
TIMEOUT_S = 600.0
DRIVER = "trtspec"


@dataclass(frozen=True)
class Server:
    """Where a server is, and what has to be told of it; `model` is the first that it names where it is empty."""

    url: str
    api: str = AUTO
    model: str = ""
    key_variable: str = KEY_VARIABLE


@dataclass(frozen=True)
class Plan:
    """What is measured; without a `baseline` the server itself is asked for the target alone, where it can be."""

    served: Server
    baseline: Server | None
    workload: Workload
    loads: Sequence[Load]
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = TIMEOUT_S
    driver: str = DRIVER
    tokenizer: Path | None = None  # which a driver may want
    is_judged: bool = False  # by a speed-up, which needs a baseline


def measure(
    plan: Plan, samples: TextIO | None = None, on_progress: OnProgress = lambda what, done, total: None
) -> Swept:
    """Return what each load came to; raises DeployError for no answers."""
    return runner()(_measure(plan, samples, on_progress))


async def _measure(plan: Plan, samples: TextIO | None, on_progress: OnProgress) -> Swept:
    ask_round = find("trtspec.bench.load.drivers", "DRIVER", plan.driver, "driver")(plan.tokenizer, plan.timeout_s)
    async with load_client(plan.timeout_s) as client:
        arms = await find_arms(client, plan.served, plan.baseline)
        if plan.is_judged and BASELINE not in arms:
            raise GateNotMet("--min-ratio has nothing to judge: there is no baseline", hint="name one with --baseline")
        sweep = Sweep(arms, plan.workload, plan.loads, plan.effort, samples, on_progress, ask_round)
        return await sweep.run(client)


async def find_arms(client: LoadClient, served: Server, baseline: Server | None) -> dict[str, Endpoint]:
    """Return the endpoint of a server, and that of the target alone: the baseline's, or its own where it can be."""
    arms = {SERVED: await find_arm(client, served)}
    alone = await find_arm(client, baseline) if baseline else await target_alone(client, arms[SERVED])
    return arms | ({BASELINE: alone} if alone else {})


async def find_arm(client: LoadClient, server: Server) -> Endpoint:
    """Return the endpoint of a server that answers; raises DeployError for any other."""
    endpoint = await find_endpoint(client, server.url, server.api, server.model, server.key_variable)
    await ensure_answers(client, endpoint)
    return endpoint


def runner() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Return what runs a loop: uvloop's, where it is, leaves the processor to the server."""
    try:
        from uvloop import run
    except ModuleNotFoundError:
        from asyncio import run  # type: ignore[assignment]
    return run
