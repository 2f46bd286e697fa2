# SPDX-License-Identifier: Apache-2.0
"""What real engines reach, fitted to what others published: `published.yaml` has the numbers and their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.gpus import Gpu
from trtspec.core.package_data import read_own

HOPPER_SM = 90


@dataclass(frozen=True)
class Reached:
    """The shares of a GPU's bandwidth and arithmetic that a pass reaches, and the seconds that come on top.

    `layer_s` is what a layer takes beside reading and computing (launches, norms, waiting for other GPUs), `draft_s` a
    draft's pass, and `step_s` a step that drafts: preparing it, accepting, sampling. `fitted_to` are the rows by which
    all of this was found.
    """

    bandwidth: float
    compute: float
    layer_s: float
    draft_s: float
    step_s: float
    fitted_to: tuple[str, ...]


@dataclass(frozen=True)
class Acceptance:
    """What somebody published of a method's drafts: the acceptance rate of each depth, and where that stands."""

    rates: tuple[float, ...]
    source: str

    def of_depth(self, depth: int) -> list[float]:
        """Return the rates of the first `depth` tokens; beyond what was published the last one goes on."""
        return [self.rates[min(number, len(self.rates) - 1)] for number in range(depth)]


@cache
def _published() -> dict[str, Any]:
    document: dict[str, Any] = read_own(Path(__file__).with_name("published.yaml"))
    return document


@cache
def reached_on(generation: str) -> Reached:
    """Return what is reached on the GPUs of a generation that rows were found for."""
    found = _published()["reached"][generation]
    return Reached(**found | {"fitted_to": tuple(found["fitted_to"])})


def reached_of(gpu: Gpu) -> Reached:
    """Return what is reached on a GPU: Blackwell is taken for Hopper, and what is older than that for Ampere."""
    return reached_on("hopper" if gpu.sm >= HOPPER_SM else "ampere")


def published_acceptance(method: str) -> Acceptance | None:
    """Return how often drafts of a method are accepted, None where no source says it."""
    found = _published()["acceptance"].get(method)
    return Acceptance(tuple(found["rates"]), found["source"]) if found else None
