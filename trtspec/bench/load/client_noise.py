# SPDX-License-Identifier: Apache-2.0
"""How noisy the machine of the client is: the same piece of work, timed again and again between the rounds.

Where servers run on the same machine, what changes these times changes theirs. Where not, it tells whether the client
had the processor that it needs.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

WORK = bytes(1 << 20)
REPEATS = 16
NOISY = 0.1  # a spread from which on a warning is due


def work_ms() -> float:
    """Return what the piece of work takes now: some ten milliseconds of hashing."""
    started = time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(REPEATS):
        digest.update(WORK)
    digest.digest()
    return 1000 * (time.perf_counter() - started)


def noise_of(samples_ms: Sequence[float]) -> dict[str, Any]:
    """Return the median of such times, and as `spread` the distance of their quartiles as a part of it."""
    median = statistics.median(samples_ms)
    low, _, high = statistics.quantiles(samples_ms, n=4) if len(samples_ms) > 1 else (median,) * 3
    return {
        "work_ms": [round(each, 3) for each in samples_ms],
        "median_work_ms": round(median, 3),
        "spread": round((high - low) / median, 4),
    }
