# SPDX-License-Identifier: Apache-2.0
"""Summary of mirrored requests, as data and as a sentence. Pure functions."""

from __future__ import annotations

from statistics import median
from typing import Any

from trtspec.serving.gateway.routing_state import MirrorStats


def mirroring_summary(seen: MirrorStats, share: int) -> dict[str, Any]:
    """Return the counts, `latency_ratio` (median of new over old seconds) and both acceptance rates.

    A value without samples is null.
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
