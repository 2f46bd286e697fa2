# SPDX-License-Identifier: Apache-2.0
"""The fitted numbers of `planning/prediction/published.yaml` are optimal: no neighbouring value fits better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log
from typing import Any

import pytest

from tests.planning.prediction.published import ROWS, pair
from trtspec.core.gpus import GPUS
from trtspec.planning.prediction.speedup import HOPPER_SM, EfficiencyData, TargetDraftPair, load_efficiency

LENGTHS = {2: 2.36, 3: 2.79}  # tokens per step of EAGLE-3 from vllm-20780, for rows with the same net and prompts
STEPS = {"bandwidth": 0.04, "compute": 0.1, "layer_s": 10e-6, "draft_s": 0.2e-3, "step_s": 0.5e-3}
COPIED = 0.9  # of the peak: a pass cannot read faster than a copy (H200: 4.3 of 4.8 TB/s)


def is_of(generation: str, row: dict[str, Any]) -> bool:
    return (GPUS[row["gpu"]].sm >= HOPPER_SM) == (generation == "hopper")


def on(pair: TargetDraftPair, reached: EfficiencyData) -> TargetDraftPair:
    machine = replace(pair.machine)
    machine.__dict__["reached"] = reached
    return replace(pair, machine=machine, drafting=replace(pair.drafting, machine=machine))


def residuals(generation: str, reached: EfficiencyData) -> Iterator[float]:
    for row in filter(lambda row: is_of(generation, row), ROWS["alone"]):
        yield log(on(pair(row), reached).alone_seconds(1) * row["tokens_per_s"])
    for row in filter(lambda row: is_of(generation, row), ROWS["measured_length"]):
        seconds = on(pair(row), reached).step_seconds(1, row["draft_len"])
        yield log(row["accepted_len"] / seconds / row["tokens_per_s"])
    for row in ROWS["speedup"]:
        if is_of(generation, row) and (length := LENGTHS.get(row["draft_len"])):
            found, texts = on(pair(row), reached), row["batch"]
            yield log(
                length * found.alone_seconds(texts) / found.step_seconds(texts, row["draft_len"]) / row["speedup"]
            )


def off(generation: str, reached: EfficiencyData) -> float:
    return sum(each**2 for each in residuals(generation, reached))


@pytest.mark.parametrize("generation", ["hopper", "ampere"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_fitted_values_have_no_better_neighbour(generation: str, name: str, sign: int) -> None:
    fitted = load_efficiency(generation)
    neighbour = replace(fitted, **{name: getattr(fitted, name) + sign * STEPS[name]})
    assert neighbour.bandwidth > COPIED or off(generation, fitted) < off(generation, neighbour)


def test_reading_and_computing_times_add_up() -> None:
    """A roofline, the maximum of reading and computing, has a far larger error with the other fitted values."""
    fitted = load_efficiency("hopper")
    overlapped = replace(fitted, compute=1e9)  # practically no computing time: these batches are bound by reading
    assert off("hopper", fitted) < off("hopper", overlapped) / 1.5
