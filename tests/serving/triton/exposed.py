# SPDX-License-Identifier: Apache-2.0
"""The metrics of trtspec's models at a server's /metrics, and how a request changes them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from urllib.request import urlopen

from tests.serving.triton.serving import Served

SAMPLE = re.compile(r'^(trtspec_\w+){.*?model="(\w+)".*} (\S+)$', re.MULTILINE)
REQUESTS = "trtspec_requests_total"
NEWS_S = 10.0


def exposition(served: Served) -> str:
    """Return the text of /metrics."""
    with urlopen(f"http://127.0.0.1:{served.metrics}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def exported_metrics(served: Served, model: str) -> Counter[str]:
    """Return a model's metrics by name, summed over their other labels; a histogram has several names."""
    sums: Counter[str] = Counter()
    for name, of, value in SAMPLE.findall(exposition(served)):
        if of == model:
            sums[name] += float(value)
    return sums


def metrics_added(served: Served, model: str, ask: Callable[[], object]) -> dict[str, float]:
    """Return the change of a model's metrics by one request, once it is reported."""
    before = exported_metrics(served, model)
    ask()
    deadline = time.monotonic() + NEWS_S
    while (now := exported_metrics(served, model))[REQUESTS] == before[REQUESTS]:
        assert time.monotonic() < deadline, "the request was never counted"
        time.sleep(0.05)
    return {name: value - before[name] for name, value in now.items() if value != before[name]}
