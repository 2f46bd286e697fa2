# SPDX-License-Identifier: Apache-2.0
"""Canary analysis: the decision to keep or reject a new revision at its share of the requests.

The absence of evidence against a revision is not sufficient. Before a decision, both revisions answer a number of
identical synthetic requests in turns. Client and mirrored requests count too if there are enough of them. Everything
except `PairedProbes`, which sends the synthetic requests, is a pure function.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from trtspec.core.errors import DeployError, TrtspecError
from trtspec.deployment.health import PROMPT
from trtspec.deployment.rollout.state import RolloutPolicy
from trtspec.serving.gateway.config import BackendStats, MirrorStats
from trtspec.serving.triton.client import Client

RESAMPLES = 1000
LOW = 2.5  # percentile of the lower end of a ratio's confidence interval
MIN_SAMPLES = 6  # minimum samples per revision for a confidence interval
MIN_SAMPLES_P95 = 100  # minimum samples per revision for the 95th percentile
MIN_DRAFTED = 200  # minimum drafted tokens for an acceptance rate


@dataclass(frozen=True)
class ProbePair:
    """The latencies in seconds and the texts of one synthetic request that both revisions answered."""

    old_s: float
    new_s: float
    old_text: str
    new_text: str


@dataclass(frozen=True)
class CanaryStats:
    """All statistics collected at one share; `comparable` is true if both revisions must generate equal texts."""

    held_s: float
    old: BackendStats = field(default_factory=BackendStats)
    new: BackendStats = field(default_factory=BackendStats)
    pairs: Sequence[ProbePair] = ()
    comparable: bool = False
    shadow: MirrorStats = field(default_factory=MirrorStats)


def rejection_reason(limits: RolloutPolicy, seen: CanaryStats) -> str:
    """Return the reason for rejecting the new revision, or ""."""
    if seen.new.failed > limits.max_failed:
        return f"{seen.new.failed} of {seen.new.requests} requests failed, most recently: {seen.new.said}"
    if seen.comparable and (other := [pair for pair in seen.pairs if pair.old_text != pair.new_text]):
        return f"{len(other)} of {len(seen.pairs)} texts differ from the previous revision's"
    acceptance = _acceptance(limits, seen.new.drafted, seen.new.accepted)
    return _check_mirrored(limits, seen) or acceptance or _latency(limits, seen)


def has_enough_samples(limits: RolloutPolicy, seen: CanaryStats) -> bool:
    """Return True if the hold time has passed and enough samples were collected."""
    return seen.held_s >= limits.hold_s and len(seen.pairs) >= limits.min_requests


def _check_mirrored(limits: RolloutPolicy, seen: CanaryStats) -> str:
    """Return the reason for a rejection based on mirrored requests, except for their latency, or ""."""
    shadow = seen.shadow
    if shadow.failed > limits.max_failed:
        return f"{shadow.failed} of {shadow.sent} mirrored requests failed, most recently: {shadow.said}"
    if seen.comparable and shadow.different:
        return f"{shadow.different} of {shadow.compared} mirrored texts differ from those sent to clients"
    return _acceptance(limits, shadow.new_drafted, shadow.new_accepted)


def _acceptance(limits: RolloutPolicy, drafted: int, accepted: int) -> str:
    if drafted < MIN_DRAFTED or accepted >= limits.min_acceptance * drafted:
        return ""
    return f"acceptance rate {accepted / drafted:.3f} is below {limits.min_acceptance}"


def _latency(limits: RolloutPolicy, seen: CanaryStats) -> str:
    """Describe the first latency whose ratio exceeds the limit with its entire confidence interval; "" if none does."""
    compared: list[tuple[str, Sequence[float], Sequence[float]]] = [
        ("a synthetic request", [pair.old_s for pair in seen.pairs], [pair.new_s for pair in seen.pairs]),
        ("the first token", seen.old.first_token, seen.new.first_token),
        ("a token", seen.old.per_token, seen.new.per_token),
        ("a mirrored request", seen.shadow.old_s, seen.shadow.new_s),
    ]
    for what, old, new in compared:
        fewer = min(len(old), len(new))
        for percentile, needed in ((50, limits.min_requests), (95, MIN_SAMPLES_P95)):
            if fewer < max(MIN_SAMPLES, needed):
                continue
            low, ratio = latency_ratio_interval(old, new, percentile)
            if low > limits.max_latency_ratio:
                return (
                    f"{what} takes {ratio:.2f} times as long as before (percentile {percentile}, 95 % interval from "
                    f"{low:.2f}; limit {limits.max_latency_ratio:g})"
                )
    return ""


def latency_ratio_interval(old: Sequence[float], new: Sequence[float], percentile: int) -> tuple[float, float]:
    """Return `(low, ratio)` for the ratio of the new to the old latency at a percentile.

    `low` is the lower end of the ratio's 95 % bootstrap confidence interval.
    """
    import numpy as np

    random = np.random.default_rng(0)

    def drawn(samples: Sequence[float]) -> Any:
        values = np.asarray(samples)
        return np.percentile(values[random.integers(len(values), size=(RESAMPLES, len(values)))], percentile, axis=1)

    ratio = float(np.percentile(new, percentile) / max(1e-9, float(np.percentile(old, percentile))))
    return float(np.percentile(drawn(new) / np.maximum(drawn(old), 1e-9), LOW)), ratio


ANSWER_S = 10.0  # the texts are short
TOKENS = 16
MAX_UNANSWERED_S = 60.0  # limit without an answered pair


class ProbeFailed(DeployError):
    """Raised if the new revision fails a request that the old one answers, or if no pair succeeds in time."""


@dataclass
class PairedProbes:
    """Sends the same requests for short texts to an old and a new server, given by address."""

    old: str
    new: str
    prompts: Sequence[str]
    found: list[ProbePair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = deque([*self.prompts, PROMPT])
        self._asked, self._since = 0, time.monotonic()

    def ask(self) -> None:
        """Send the next request to both servers in alternating order; raises ProbeFailed.

        A prompt that both servers fail is dropped. A failure of the old server only is ignored.
        """
        prompt, self._asked = self._left[0], self._asked + 1
        first, second = (self.old, self.new) if self._asked % 2 else (self.new, self.old)
        results = {url: _answer(url, prompt) for url in (first, second)}
        old, new = results[self.old], results[self.new]
        if isinstance(new, TrtspecError):
            if not isinstance(old, TrtspecError):
                raise ProbeFailed(f"a synthetic request failed: {new.message}")
            if len(self._left) > 1:
                self._left.popleft()
        self._left.rotate(-1)
        if not isinstance(old, TrtspecError) and not isinstance(new, TrtspecError):
            self.found.append(ProbePair(old[0], new[0], old[1], new[1]))
            self._since = time.monotonic()
        elif time.monotonic() - self._since > MAX_UNANSWERED_S:
            raise ProbeFailed(f"no synthetic request was answered by both revisions for {MAX_UNANSWERED_S:.0f} s")


def _answer(url: str, prompt: str) -> tuple[float, str] | TrtspecError:
    """Send a synthetic request; return the seconds and the text of the response, or the error."""
    request = {"text_input": prompt, "max_tokens": TOKENS, "temperature": 0.0, "exclude_input_in_output": True}
    began = time.monotonic()
    try:
        text = str(Client.at(url, ANSWER_S).generate(request).get("text_output"))
    except TrtspecError as error:
        return error
    return time.monotonic() - began, text


def mirroring_summary(seen: MirrorStats, share: int) -> dict[str, Any]:
    """Return a summary of mirrored requests: counts, latency ratio and acceptance rates.

    `latency_ratio` is the median ratio of the new to the old duration. A value without samples is None.
    """
    counts = {name: getattr(seen, name) for name in ("sent", "failed", "compared", "different", "dropped")}
    ratios = [new / max(old, 1e-9) for old, new in zip(seen.old_s, seen.new_s, strict=True)]
    found: dict[str, Any] = {
        "share": share,
        **counts,
        "latency_ratio": round(median(ratios), 3) if ratios else None,
        "acceptance_rate": _rate(seen.new_accepted, seen.new_drafted),
        "acceptance_rate_before": _rate(seen.accepted, seen.drafted),
    }
    return found | {"verdict": _describe(found)}


def _describe(found: dict[str, Any]) -> str:
    parts = [f"{found['sent']} requests, {found['failed']} failed"]
    parts.append(f"{found['different']} of {found['compared']} greedy texts differ")
    if (ratio := found["latency_ratio"]) is not None:
        parts.append(f"{ratio:.2f} times the latency")
    if (rate := found["acceptance_rate"]) is not None:
        before = found["acceptance_rate_before"]
        parts.append(f"acceptance rate {rate:.3f}" + (f" ({before:.3f} before)" if before is not None else ""))
    return ", ".join([*parts, f"{found['dropped']} dropped because of load"])


def _rate(accepted: int, drafted: int) -> float | None:
    return round(accepted / drafted, 4) if drafted else None
