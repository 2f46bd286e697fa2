# SPDX-License-Identifier: Apache-2.0
"""Run a load benchmark from server addresses to results."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from trtspec.bench.load.arrival import ArrivalProcess
from trtspec.bench.load.client import Endpoint, LoadClient, load_client
from trtspec.bench.load.discovery import AUTO, KEY_VARIABLE, ensure_answers, find_endpoint, target_alone
from trtspec.bench.load.sweep import BASELINE, SERVED, OnProgress, StopRule, Sweep, SweepResult
from trtspec.bench.load.workload import LoadWorkload
from trtspec.core.errors import GateNotMet
from trtspec.core.registry import find_extension

T = TypeVar("T")
TIMEOUT_S = 600.0
DRIVER = "trtspec"


@dataclass(frozen=True)
class ServerAddress:
    """A server's address and API; if `model` is empty, the first model that it lists is used."""

    url: str
    api: str = AUTO
    model: str = ""
    key_variable: str = KEY_VARIABLE


@dataclass(frozen=True)
class LoadPlan:
    """The benchmark plan; without a `baseline`, the server runs the target alone if it supports that."""

    served: ServerAddress
    baseline: ServerAddress | None
    workload: LoadWorkload
    loads: Sequence[ArrivalProcess]
    effort: StopRule = field(default_factory=StopRule)
    timeout_s: float = TIMEOUT_S
    driver: str = DRIVER
    tokenizer: Path | None = None  # used by some drivers
    is_judged: bool = False  # a gate needs the speed-up, and therefore a baseline


def measure(
    plan: LoadPlan, samples: TextIO | None = None, on_progress: OnProgress = lambda what, done, total: None
) -> SweepResult:
    """Run the plan and return the results of each load; raise DeployError if a server does not respond."""
    return runner()(_measure(plan, samples, on_progress))


async def _measure(plan: LoadPlan, samples: TextIO | None, on_progress: OnProgress) -> SweepResult:
    ask_round = find_extension("trtspec.bench.load.drivers", "DRIVER", plan.driver, "driver")(
        plan.tokenizer, plan.timeout_s
    )
    async with load_client(plan.timeout_s) as client:
        arms = await find_arms(client, plan.served, plan.baseline)
        if plan.is_judged and BASELINE not in arms:
            raise GateNotMet("--fail-below requires a baseline", hint="give one with --baseline")
        sweep = Sweep(arms, plan.workload, plan.loads, plan.effort, samples, on_progress, ask_round)
        return await sweep.run(client)


async def find_arms(client: LoadClient, served: ServerAddress, baseline: ServerAddress | None) -> dict[str, Endpoint]:
    """Return the endpoints of the server and of the target alone, from `baseline` or the server itself."""
    arms = {SERVED: await find_arm(client, served)}
    alone = await find_arm(client, baseline) if baseline else await target_alone(client, arms[SERVED])
    return arms | ({BASELINE: alone} if alone else {})


async def find_arm(client: LoadClient, server: ServerAddress) -> Endpoint:
    """Return the endpoint of a server; raise DeployError if a probe request fails."""
    endpoint = await find_endpoint(client, server.url, server.api, server.model, server.key_variable)
    await ensure_answers(client, endpoint)
    return endpoint


def runner() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Return the function that runs the event loop; uvloop's, if installed, uses less processor time."""
    try:
        from uvloop import run
    except ModuleNotFoundError:
        from asyncio import run  # type: ignore[assignment]
    return run
