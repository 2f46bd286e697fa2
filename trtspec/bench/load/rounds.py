# SPDX-License-Identifier: Apache-2.0
"""Run one round of one arm and compute its metrics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trtspec.bench.load.api import LoadSampling
from trtspec.bench.load.arrivals import ArrivalProcess
from trtspec.bench.load.client import Endpoint, LoadClient, clock
from trtspec.bench.load.sample import MS, RequestSample, Slo
from trtspec.bench.load.workload import LoadWorkload
from trtspec.engine.prompts.prompt import Prompt

MAX_FAILED = 0.01  # share of requests; above it, the completed ones no longer represent the workload


@dataclass(frozen=True)
class Round:
    """The requests of a round in order; `client_cpu_s` is the client's processor time.

    It is None if another program sent them. `places` is the concurrency of a closed loop, None for an open loop.
    """

    samples: Sequence[RequestSample]
    client_cpu_s: float | None = None
    places: int | None = None

    @cached_property
    def answered(self) -> list[RequestSample]:
        """Return the requests with a complete response."""
        return [sample for sample in self.samples if sample.ok]

    @cached_property
    def seconds(self) -> float:
        """Return the seconds from the first request's scheduled time to the last chunk."""
        return max((sample.due_s + sample.chunks_s[-1] for sample in self.answered), default=0.0)

    @property
    def output_tokens(self) -> int:
        return sum(sample.output_tokens for sample in self.answered)

    @cached_property
    def steady_state_s(self) -> float:
        """Return the seconds at full concurrency: until the last request was sent in a closed loop, else all seconds.

        Also all seconds if no token arrived by then, for example because the first requests failed immediately.
        """
        if self.places is None or len(self.samples) <= self.places:
            return self.seconds
        until = max(sample.due_s for sample in self.samples)
        return until if self._tokens_until(until) else self.seconds

    @cached_property
    def steady_state_tokens(self) -> float:
        """Return the output tokens within `full_s`.

        After that, concurrency decreases, for longer the more the requests' durations differ.
        """
        return self.output_tokens if self.steady_state_s == self.seconds else self._tokens_until(self.steady_state_s)

    def _tokens_until(self, seconds: float) -> float:
        return sum(sample.tokens_within(seconds - sample.due_s) for sample in self.answered)

    @property
    def output_tokens_per_s(self) -> float:
        """Return the output tokens per second, in a closed loop at full concurrency."""
        return self.steady_state_tokens / self.steady_state_s

    @property
    def mean_e2e_ms(self) -> float:
        """Return the mean time to the last token."""
        return statistics.mean(sample.e2e_ms for sample in self.answered)

    @property
    def mean_ttft_ms(self) -> float:
        """Return the mean time to the first token."""
        return statistics.mean(sample.ttft_ms for sample in self.answered)

    @property
    def mean_tpot_ms(self) -> float | None:
        """Return the mean TPOT, or None if no response has more than one token."""
        found = [sample.tpot_ms for sample in self.answered if sample.tpot_ms is not None]
        return statistics.mean(found) if found else None

    @property
    def e2e_growth(self) -> float:
        """Return the mean end-to-end time of the later half divided by the earlier half's; above 1, a queue grows."""
        half = len(self.answered) // 2
        if not half:
            return 1.0
        early, late = (statistics.mean(each.e2e_ms for each in part)
                       for part in (self.answered[:half], self.answered[half:]))  # fmt: skip
        return late / early

    def as_dict(self, slo: Slo | None) -> dict[str, Any]:
        if not self.answered:
            return {"requests": 0, "failed": len(self.samples)}
        kept = sum(map(slo.holds, self.samples)) if slo else None
        return {
            "requests": len(self.answered),
            "failed": len(self.samples) - len(self.answered),
            "seconds": round(self.seconds, 4),
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": round(self.output_tokens_per_s, 3),
            "mean_ttft_ms": round(self.mean_ttft_ms, 3),
            "mean_tpot_ms": None if self.mean_tpot_ms is None else round(self.mean_tpot_ms, 4),
            "mean_e2e_ms": round(self.mean_e2e_ms, 3),
            "goodput_requests_per_s": None if kept is None else round(kept / self.seconds, 4),
        }


# A driver: (client, endpoint, load, workload, round number, number of requests) to the measured round.
AskRound = Callable[[LoadClient, Endpoint, ArrivalProcess, LoadWorkload, int, int], Awaitable[Round]]


async def run_round(
    client: LoadClient, endpoint: Endpoint, load: ArrivalProcess, workload: LoadWorkload, number: int, requests: int
) -> Round:
    prompts = workload.round_prompts(number, requests)
    return await ask_all(client, endpoint, load, prompts, workload.wanted, workload.arrivals_seed(number))


async def ask_all(
    client: LoadClient,
    endpoint: Endpoint,
    load: ArrivalProcess,
    prompts: Sequence[Prompt],
    wanted: LoadSampling,
    seed: int = 0,
) -> Round:
    """Send prompts in order at the times of a load; all bodies are built before the first request."""
    bodies = [endpoint.request(prompt, wanted) for prompt in prompts]
    samples: dict[int, RequestSample] = {}
    cpu, began = time.process_time(), clock()

    async def ask(place: int, due: float) -> None:
        samples[place] = await client.ask(endpoint, prompts[place], bodies[place], began, due)

    await load.run(ask, len(prompts), seed)
    return Round([samples[place] for place in range(len(prompts))], time.process_time() - cpu, load.places)


def sent_late_ms(rounds: Sequence[Round]) -> list[float]:
    """Return the delay between scheduled and actual send time of each request."""
    return [MS * (sample.sent_s - sample.due_s) for each in rounds for sample in each.samples]
