# SPDX-License-Identifier: Apache-2.0
"""Workload of a load test, and one round of one arm with its metrics.

The prompts are in seeded order, the same for both arms, and identified by a digest. Random prompts of a given length
load a server like real text of that length. They cannot measure acceptance, because the text is unnatural and models
tend to repeat themselves on it.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.bench.load.api import LoadSampling
from trtspec.bench.load.arrivals import ArrivalProcess
from trtspec.bench.load.client import Endpoint, LoadClient, clock
from trtspec.bench.load.sample import RequestSample, Slo
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.prompts.prompt import Prompt

TRIES = 16  # attempts to generate a random prompt of the requested length
MAX_FAILED = 0.01  # fraction of requests above which the completed ones do not represent the workload


def random_prompts(tokenizer: Path, tokens: int, count: int, seed: int) -> list[Prompt]:
    """Return random prompts of `tokens` tokens, including special tokens; equal seeds give equal prompts.

    If the tokenizer merges the drawn tokens, the text is extended or cut. The closest of several attempts is used.
    """
    opened, draws = Tokenizer(tokenizer), random.Random(seed)
    words = sorted(set(range(opened.vocab_size)) - opened.fragments - opened.silent)
    return [Prompt(_text(opened, words, tokens, draws), f"random-{number}", "random") for number in range(count)]


def _text(tokenizer: Tokenizer, words: list[int], tokens: int, draws: random.Random) -> str:
    ids = draws.choices(words, k=tokens)
    best = (tokens, "")
    for _ in range(TRIES):
        text = tokenizer.decode(ids)
        missing = tokens - len(tokenizer.encode(text))
        best = min(best, (abs(missing), text))
        if not missing:
            break
        ids = [*ids, *draws.choices(words, k=missing)] if missing > 0 else ids[:missing] or ids[:1]
    return best[1]


@dataclass(frozen=True)
class LoadWorkload:
    """Prompts with their source, the generation parameters, and the seed of the prompts' order and of the arrivals."""

    prompts: Sequence[Prompt]
    wanted: LoadSampling
    source: str
    seed: int = 0

    @cached_property
    def order(self) -> list[Prompt]:
        """Return the prompts in random order, because files group them by category and rounds should mix categories."""
        shuffled = list(self.prompts)
        random.Random(self.seed).shuffle(shuffled)
        return shuffled

    def round_prompts(self, number: int, requests: int) -> list[Prompt]:
        """Return the prompts of round `number`, cycling through all prompts; negative numbers are warm-up rounds."""
        first = number * requests
        return [self.order[(first + place) % len(self.order)] for place in range(requests)]

    def arrivals_seed(self, number: int) -> int:
        """Return the seed of a round's arrivals, which is the same for both arms and differs between rounds."""
        return (self.seed << 20) + number

    @property
    def sha256(self) -> str:
        """Return the digest of the prompts and parameters; equal digests mean equal workloads."""
        texts = [(prompt.text, [dict(message) for message in prompt.messages]) for prompt in self.prompts]
        said = json.dumps([texts, asdict(self.wanted), self.seed], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(said.encode(errors="replace")).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompts": len(self.prompts),
            "source": self.source,
            "sha256": self.sha256,
            "max_tokens": self.wanted.max_tokens,
            "exact_len": self.wanted.exact_len,
            "temperature": self.wanted.temperature,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Round:
    """The requests of one round of one arm, in order."""

    samples: Sequence[RequestSample]
    client_cpu_s: float | None = None  # the client's processor time, or None if another program sent the requests
    places: int | None = None  # the concurrency of a closed loop, or None for an open loop

    @cached_property
    def answered(self) -> list[RequestSample]:
        return [sample for sample in self.samples if sample.ok]

    @cached_property
    def seconds(self) -> float:
        """Return the seconds from the start of the round to the last chunk of text."""
        return max((sample.due_s + sample.chunks_s[-1] for sample in self.answered), default=0.0)

    @property
    def output_tokens(self) -> int:
        return sum(sample.output_tokens for sample in self.answered)

    @cached_property
    def steady_state_s(self) -> float:
        """Return the seconds at full concurrency: in a closed loop until the last request was sent, else all seconds.

        Returns all seconds too if no token arrived until then, for example because the first requests failed.
        """
        if self.places is None or len(self.samples) <= self.places:
            return self.seconds
        until = max(sample.due_s for sample in self.samples)
        return until if self._tokens_until(until) else self.seconds

    @cached_property
    def steady_state_tokens(self) -> float:
        """Return the output tokens that arrived within `steady_state_s`, before the concurrency decreases."""
        return self.output_tokens if self.steady_state_s == self.seconds else self._tokens_until(self.steady_state_s)

    def _tokens_until(self, seconds: float) -> float:
        return sum(sample.tokens_within(seconds - sample.due_s) for sample in self.answered)

    @property
    def output_tokens_per_s(self) -> float:
        """Return the output tokens per second; in a closed loop, only while the concurrency is full."""
        return self.steady_state_tokens / self.steady_state_s

    @property
    def mean_e2e_ms(self) -> float:
        return statistics.mean(sample.e2e_ms for sample in self.answered)

    @property
    def mean_ttft_ms(self) -> float:
        return statistics.mean(sample.ttft_ms for sample in self.answered)

    @property
    def mean_tpot_ms(self) -> float | None:
        """Return the mean TPOT, or None if no response has more than one token."""
        found = [sample.tpot_ms for sample in self.answered if sample.tpot_ms is not None]
        return statistics.mean(found) if found else None

    @property
    def e2e_growth(self) -> float:
        """Return the mean end-to-end latency of the later half of requests, divided by the mean of the earlier half.

        A value well above 1 means that a queue grows.
        """
        times = [sample.e2e_ms for sample in self.answered]
        half = len(times) // 2
        return statistics.mean(times[half:]) / statistics.mean(times[:half]) if half else 1.0

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


# Load generator: (client, endpoint, load, workload, round number, number of requests) -> measured round.
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
    """Send prompts at the times of an arrival process; all request bodies are built before the first request."""
    bodies = [endpoint.request(prompt, wanted) for prompt in prompts]
    samples: dict[int, RequestSample] = {}
    cpu, began = time.process_time(), clock()

    async def ask(place: int, due: float) -> None:
        samples[place] = await client.ask(endpoint, prompts[place], bodies[place], began, due)

    await load.run(ask, len(prompts), seed)
    return Round([samples[place] for place in range(len(prompts))], time.process_time() - cpu, load.slots)
