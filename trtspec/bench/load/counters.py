# SPDX-License-Identifier: Apache-2.0
"""Read draft statistics from Prometheus counters, for servers that do not report them per response.

Counters include all traffic of a server, so they are correct only without other clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from trtspec.bench.load.client import Endpoint, LoadClient
from trtspec.core.prometheus_text import parse_metrics

# Draft steps, drafted tokens and accepted tokens; the names are prefixed by the engine's name and a colon. Source:
# vllm-project/vllm:vllm/v1/spec_decode/metrics.py@def9ce85.
NAMES = ("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")


@dataclass(frozen=True)
class Counters:
    """Counter values or differences; all are None if the server does not export them."""

    steps: float | None = None
    drafted: float | None = None
    accepted: float | None = None

    def since(self, before: Counters) -> Counters:
        """Return the increase since `before`; empty if the server was restarted."""
        if self.steps is None or before.steps is None or self.steps < before.steps:
            return Counters()
        return Counters(*(now - then for now, then in zip(self._all(), before._all(), strict=True)))

    def _all(self) -> tuple[float, float, float]:
        return self.steps or 0.0, self.drafted or 0.0, self.accepted or 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the rates as reported for servers with per-response counts; null without counters."""
        return {
            "acceptance_rate": round((self.accepted or 0.0) / self.drafted, 4) if self.drafted else None,
            "mean_accepted_len": round(1 + (self.accepted or 0.0) / self.steps, 4) if self.steps else None,
        }


async def read_counters(client: LoadClient, endpoint: Endpoint) -> Counters:
    """Fetch a server's counters; empty if it does not export any."""
    try:
        status, content = await client.get(f"{endpoint.url}/metrics", endpoint.headers)
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):  # distinct classes before Python 3.11
        return Counters()
    return parse_counters(content) if status == 200 else Counters()


def parse_counters(text: bytes) -> Counters:
    """Return the counters of a Prometheus text, summed over labels."""
    found = {name.rpartition(":")[2]: samples for name, samples in parse_metrics(text).items()}
    sums = {name: sum(sample.value for sample in found[name]) for name in NAMES if name in found}
    return Counters(*(sums[name] for name in NAMES)) if len(sums) == len(NAMES) else Counters()
