# SPDX-License-Identifier: Apache-2.0
"""Measure the noise of the client's machine by timing fixed work between the rounds.

If servers run on the same machine, the noise affects them too. Otherwise it shows whether the client had enough
processor time.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

WORK = bytes(1 << 20)
REPEATS = 16
NOISY = 0.1  # spread above which a warning is printed


def work_ms() -> float:
    """Return the milliseconds that the fixed work takes: about ten milliseconds of hashing."""
    started = time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(REPEATS):
        digest.update(WORK)
    digest.digest()
    return 1000 * (time.perf_counter() - started)


def summarize_noise(samples_ms: Sequence[float]) -> dict[str, Any]:
    """Return the median of such times, and as `spread` their interquartile range divided by the median."""
    median = statistics.median(samples_ms)
    low, _, high = statistics.quantiles(samples_ms, n=4) if len(samples_ms) > 1 else (median,) * 3
    return {
        "work_ms": [round(each, 3) for each in samples_ms],
        "median_work_ms": round(median, 3),
        "spread": round((high - low) / median, 4),
    }
