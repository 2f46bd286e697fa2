# SPDX-License-Identifier: Apache-2.0
"""Whether a new revision may go on at its share of the requests, by what was seen of it and of the one before. Pure.

A revision is not promoted because nothing is known against it: both have answered a number of equal requests of our
own, in turns, before anything is decided. Others' requests count as well, where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.deployment.rollout.state import Limits
from trtspec.serving.gateway.routing_state import Observed, Shadowed

RESAMPLES = 1000
LOW = 2.5  # percent: of the interval of a ratio, its lower end
ENOUGH = 6  # samples on both sides; fewer have no interval worth its name
FOR_P95 = 100  # samples on both sides; of fewer the 95th percentile is one or two of them
LEAST_DRAFTED = 200  # tokens; of fewer the acceptance rate is too rough


@dataclass(frozen=True)
class Pair:
    """One request of our own that both revisions answered: seconds, and texts."""

    old_s: float
    new_s: float
    old_text: str
    new_text: str


@dataclass(frozen=True)
class Seen:
    """All that is known at one share. `comparable` says that both revisions have to write the same."""

    held_s: float
    old: Observed = field(default_factory=Observed)
    new: Observed = field(default_factory=Observed)
    pairs: Sequence[Pair] = ()
    comparable: bool = False
    shadow: Shadowed = field(default_factory=Shadowed)


def objection(limits: Limits, seen: Seen) -> str:
    """Return why the new revision may not go on; "" where nothing is known against it."""
    if seen.new.failed > limits.max_failed:
        return f"{seen.new.failed} of {seen.new.requests} requests failed, the last with: {seen.new.said}"
    if seen.comparable and (other := [pair for pair in seen.pairs if pair.old_text != pair.new_text]):
        return f"{len(other)} of {len(seen.pairs)} texts are not those of the revision before"
    acceptance = _acceptance(limits, seen.new.drafted, seen.new.accepted)
    return _of_shadow(limits, seen) or acceptance or _latency(limits, seen)


def may_go_on(limits: Limits, seen: Seen) -> bool:
    """Return whether enough is known."""
    return seen.held_s >= limits.hold_s and len(seen.pairs) >= limits.min_requests


def _of_shadow(limits: Limits, seen: Seen) -> str:
    """Return what the shadows of live requests say against it; what takes long is looked at with the rest."""
    shadow = seen.shadow
    if shadow.failed > limits.max_failed:
        return f"{shadow.failed} of {shadow.sent} shadowed requests failed, the last with: {shadow.said}"
    if seen.comparable and shadow.different:
        return f"{shadow.different} of {shadow.compared} shadowed texts are not those that clients got"
    return _acceptance(limits, shadow.new_drafted, shadow.new_accepted)


def _acceptance(limits: Limits, drafted: int, accepted: int) -> str:
    if drafted < LEAST_DRAFTED or accepted >= limits.min_acceptance * drafted:
        return ""
    return f"acceptance rate {accepted / drafted:.3f}, at least {limits.min_acceptance} is wanted"


def _latency(limits: Limits, seen: Seen) -> str:
    """Return which latency is surely beyond its limit: the lower end of the ratio's interval is."""
    compared = [("a request of our own", [p.old_s for p in seen.pairs], [p.new_s for p in seen.pairs])]
    compared.append(("the first token", [*seen.old.first_token], [*seen.new.first_token]))
    compared.append(("a token", [*seen.old.per_token], [*seen.new.per_token]))
    compared.append(("a shadowed request", [*seen.shadow.old_s], [*seen.shadow.new_s]))
    for what, old, new in compared:
        fewer = min(len(old), len(new))
        for percentile, needed in ((50, limits.min_requests), (95, FOR_P95)):
            if fewer < max(ENOUGH, needed):
                continue
            low, ratio = ratio_of(old, new, percentile)
            if low > limits.max_latency_ratio:
                return (
                    f"{what} takes {ratio:.2f} times as long as before (percentile {percentile}, surely over "
                    f"{low:.2f}; at most {limits.max_latency_ratio:g})"
                )
    return ""


def ratio_of(old: Sequence[float], new: Sequence[float], percentile: int) -> tuple[float, float]:
    """Return the lower end of the 95 % bootstrap interval of a ratio of percentiles, and the ratio itself."""
    import numpy as np

    random = np.random.default_rng(0)

    def drawn(samples: Sequence[float]) -> Any:
        values = np.asarray(samples)
        return np.percentile(values[random.integers(len(values), size=(RESAMPLES, len(values)))], percentile, axis=1)

    ratio = float(np.percentile(new, percentile) / max(1e-9, float(np.percentile(old, percentile))))
    return float(np.percentile(drawn(new) / np.maximum(drawn(old), 1e-9), LOW)), ratio
