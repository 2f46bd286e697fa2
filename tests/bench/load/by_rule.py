# SPDX-License-Identifier: Apache-2.0
"""A simulated server with deterministic response times, so that results are reproducible."""

from __future__ import annotations

from typing import Any

from trtspec.bench.load.api import find_api
from trtspec.bench.load.client import BASELINE, SERVED, Endpoint, ServerAddress
from trtspec.bench.load.rounds import LoadWorkload, Round
from trtspec.bench.load.sample import RequestSample

ALONE = {"num_draft_tokens": 0}
FIRST_S, STEP_TOKENS = 0.05, 3


async def arms(client: Any, served: ServerAddress, baseline: ServerAddress | None) -> dict[str, Endpoint]:
    """Return a fake server's endpoint, and the same with drafting switched off."""
    api = find_api("completions")
    return {
        SERVED: Endpoint(served.url, "completions", api, "tiny"),
        BASELINE: Endpoint(served.url, "completions", api, "tiny", ALONE),
    }


async def answered(
    client: Any, endpoint: Endpoint, load: Any, workload: LoadWorkload, number: int, requests: int
) -> Round:
    """Return a simulated round: steps take longer with more concurrent requests, especially steps that verify drafts.

    Later requests and later rounds are slightly slower.
    """
    many, tokens, drafts = load.concurrency, workload.wanted.max_tokens, endpoint.extra != ALONE
    step_s = (0.010 + 0.002 * many if drafts else 0.010 + 0.0005 * many) * (1 + 0.01 * (number % 3))
    step_tokens = STEP_TOKENS if drafts else 1
    steps = (tokens - 1) // step_tokens
    drafted = (2 * steps * step_tokens, steps * (step_tokens - 1), steps) if drafts else (None, None, None)
    samples = []
    for place, prompt in enumerate(workload.round_prompts(number, requests)):
        slower = 1 + 0.001 * place
        chunks = tuple(slower * (FIRST_S + step * step_s) for step in range(steps + 1))
        due = place // many * (FIRST_S + steps * step_s)
        text = str(place)
        samples.append(
            RequestSample(
                *(prompt.name, prompt.kind, due, due, chunks, 8, 1 + steps * step_tokens, True),
                *(*drafted, (), "length", text),
            )
        )
    return Round(samples, 0.01)
