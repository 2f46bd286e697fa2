# SPDX-License-Identifier: Apache-2.0
"""What the shadows of live requests came to, as data and in a sentence. Pure."""

from __future__ import annotations

from statistics import median
from typing import Any

from trtspec.serving.gateway.routing_state import Shadowed


def summary(seen: Shadowed, share: int) -> dict[str, Any]:
    """Return the counts with `latency_ratio`, the median of the new seconds over the old, and both acceptance rates.

    A number that cannot be said is null.
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
    return found | {"verdict": _verdict(found)}


def _verdict(found: dict[str, Any]) -> str:
    said = [f"{found['sent']} requests, {found['failed']} failed"]
    said.append(f"{found['different']} of {found['compared']} greedy texts are others")
    if (ratio := found["latency_ratio"]) is not None:
        said.append(f"{ratio:.2f} times as long")
    if (rate := found["acceptance_rate"]) is not None:
        before = found["acceptance_rate_before"]
        said.append(f"acceptance rate {rate:.3f}" + (f" ({before:.3f} before)" if before is not None else ""))
    return ", ".join([*said, f"{found['dropped']} not sent for load"])


def _rate(accepted: int, drafted: int) -> float | None:
    return round(accepted / drafted, 4) if drafted else None
