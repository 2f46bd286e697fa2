# SPDX-License-Identifier: Apache-2.0
"""Efficiency of real engines, fitted to published measurements; `published.yaml` has the numbers and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.gpus import Gpu
from trtspec.core.package_data import load_package_yaml

HOPPER_SM = 90


@dataclass(frozen=True)
class EfficiencyData:
    """The shares of a GPU's bandwidth and arithmetic that a pass reaches, and additional seconds.

    `layer_s` is a layer's time other than reading and computing (launches, norms, waiting for other GPUs), `draft_s` is
    added per draft pass, and `step_s` per step that drafts: preparation, acceptance, sampling. `fitted_to` lists the
    rows that these values were fitted to.
    """

    bandwidth: float
    compute: float
    layer_s: float
    draft_s: float
    step_s: float
    fitted_to: tuple[str, ...]


@dataclass(frozen=True)
class PublishedAcceptance:
    """Published acceptance of a method's drafts: the rate at each depth, and the source."""

    rates: tuple[float, ...]
    source: str

    def of_depth(self, depth: int) -> list[float]:
        """Return the rates of the first `depth` tokens; the last published rate is repeated if necessary."""
        return [self.rates[min(number, len(self.rates) - 1)] for number in range(depth)]


@cache
def _published() -> dict[str, Any]:
    document: dict[str, Any] = load_package_yaml(Path(__file__).with_name("published.yaml"))
    return document


@cache
def load_efficiency(generation: str) -> EfficiencyData:
    """Return the efficiency of a GPU generation that has published rows."""
    found = _published()["reached"][generation]
    return EfficiencyData(**found | {"fitted_to": tuple(found["fitted_to"])})


def efficiency_for(gpu: Gpu) -> EfficiencyData:
    """Return the efficiency of a GPU: Blackwell counts as Hopper, older GPUs as Ampere."""
    return load_efficiency("hopper" if gpu.sm >= HOPPER_SM else "ampere")


def published_acceptance(method: str) -> PublishedAcceptance | None:
    """Return the published acceptance of a method's drafts, if any."""
    found = _published()["acceptance"].get(method)
    return PublishedAcceptance(tuple(found["rates"]), found["source"]) if found else None
