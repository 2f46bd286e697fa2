# SPDX-License-Identifier: Apache-2.0
"""What drafts came to by a server's Prometheus counters, for servers that do not tell it with each text.

Counters are of all that a server answers meanwhile; they are right where nobody else asks it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from trtspec.bench.load.client import Endpoint, LoadClient
from trtspec.core.prometheus_text import parse_metrics

# Steps that verified a draft, tokens drafted and tokens accepted, behind the engine's name and a colon; from
# vllm-project/vllm:vllm/v1/spec_decode/metrics.py@def9ce85.
NAMES = ("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")


@dataclass(frozen=True)
class Counters:
    """Counts so far, or between two moments; all are None where the server has none."""

    steps: float | None = None
    drafted: float | None = None
    accepted: float | None = None

    def since(self, before: Counters) -> Counters:
        """Return what was counted since then; nothing where a server began anew."""
        if self.steps is None or before.steps is None or self.steps < before.steps:
            return Counters()
        return Counters(*(now - then for now, then in zip(self._all(), before._all(), strict=True)))

    def _all(self) -> tuple[float, float, float]:
        return self.steps or 0.0, self.drafted or 0.0, self.accepted or 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return rates as a server that tells them with each text does; null where there are no counters."""
        return {
            "acceptance_rate": round((self.accepted or 0.0) / self.drafted, 4) if self.drafted else None,
            "mean_accepted_len": round(1 + (self.accepted or 0.0) / self.steps, 4) if self.steps else None,
        }


async def read_counters(client: LoadClient, endpoint: Endpoint) -> Counters:
    """Ask a server for its counters; it need not have any."""
    try:
        status, content = await client.get(f"{endpoint.url}/metrics", endpoint.headers)
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):  # two of them before Python 3.11
        return Counters()
    return parse_counters(content) if status == 200 else Counters()


def parse_counters(text: bytes) -> Counters:
    """Return the counters of an exposition, summed over their labels."""
    found = {name.rpartition(":")[2]: samples for name, samples in parse_metrics(text).items()}
    sums = {name: sum(sample.value for sample in found[name]) for name in NAMES if name in found}
    return Counters(*(sums[name] for name in NAMES)) if len(sums) == len(NAMES) else Counters()
