# SPDX-License-Identifier: Apache-2.0
"""Choose where a draft model runs: on the target's GPUs, on one of them, on its own GPU, or on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trtspec.core.gpus import Gpu
from trtspec.planning.prediction.roofline import GpuGroup
from trtspec.planning.prediction.speedup import TargetDraftPair

# https://www.intel.com/content/www/us/en/products/sku/231746/: eight channels of DDR5-4800, 56 cores with AMX
CPU = Gpu("cpu", "", 0, 0, 307e9, 50e12, 0, 0, "https://www.intel.com/content/www/us/en/products/sku/231746/")
ROOM_NEEDED = "the target's GPUs lack the memory for it"


@dataclass(frozen=True)
class PlacementOption:
    """A possible device: the speed-up, the speed-up per GPU (0 if it does not fit), and the seconds of a draft pass."""

    where: str
    pass_s: float
    speedup: float
    speedup_by_gpu: float
    fits: bool


@dataclass(frozen=True)
class PlacementChoice:
    """The best place and the reason."""

    best: PlacementOption
    why: str
    places: tuple[PlacementOption, ...]


def choose_placement(pair: TargetDraftPair, rate: float, depth: int, texts: int, *, has_room: bool) -> PlacementChoice:
    """Return the best place for the draft of a pair, by speed-up per GPU in use.

    `has_room` is True if the draft fits on the target's GPUs together with the target.
    """
    places = tuple(_candidates(pair, rate, depth, texts, has_room))
    best = max((place for place in places if place.fits), key=lambda place: place.speedup_by_gpu)
    return PlacementChoice(best, _why(best, places, has_room), places)


def _candidates(
    pair: TargetDraftPair, rate: float, depth: int, texts: int, has_room: bool
) -> Iterable[PlacementOption]:
    gpu, ranks = pair.machine.gpu, pair.machine.tensor
    if ranks > 1:
        yield _evaluate("all of the target's GPUs", GpuGroup(gpu, ranks), pair, rate, depth, texts, 0, has_room)
        yield _evaluate("one of the target's GPUs", GpuGroup(gpu), pair, rate, depth, texts, 0, has_room)
    else:
        yield _evaluate("the target's GPU", GpuGroup(gpu), pair, rate, depth, texts, 0, has_room)
    yield _evaluate("a GPU of its own", GpuGroup(gpu), pair, rate, depth, texts, 1, True)
    yield _evaluate("the CPU", GpuGroup(CPU), pair, rate, depth, texts, 0, True)


def _evaluate(
    where: str,
    machine: GpuGroup,
    pair: TargetDraftPair,
    rate: float,
    depth: int,
    texts: int,
    more_gpus: int,
    fits: bool,
) -> PlacementOption:
    there = replace(pair, drafting=replace(pair.drafting, machine=machine))
    speedup, ranks = there.speedup(rate, depth, texts), pair.machine.tensor
    seconds = there.drafting.seconds(1, texts, pair.context)
    return PlacementOption(where, seconds, speedup, speedup * ranks / (ranks + more_gpus) if fits else 0.0, fits)


def _why(best: PlacementOption, places: tuple[PlacementOption, ...], has_room: bool) -> str:
    """Return the reason, compared with the next best place."""
    reason = "" if has_room else f"{ROOM_NEEDED}; "
    others = [place for place in places if place.fits and place.where != best.where]
    other = max(others, key=lambda place: place.speedup_by_gpu)
    return (
        f"{reason}a draft pass takes {best.pass_s * 1e3:.1f} ms there and {other.pass_s * 1e3:.1f} ms on {other.where},"
        f" where the speed-up for each GPU would be {other.speedup_by_gpu:.2f}x instead of {best.speedup_by_gpu:.2f}x"
    )
