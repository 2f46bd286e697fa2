# SPDX-License-Identifier: Apache-2.0
"""Asks a running server what a profile is made of: answers to all prompts, and streams that are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice

from trtspec.bench.load.api import Wanted
from trtspec.bench.load.arrivals.closed import Closed
from trtspec.bench.load.client import Endpoint, LoadClient, load_client
from trtspec.bench.load.intervals import ratio_of_rounds
from trtspec.bench.load.rounds import MAX_FAILED, Round, ask_all
from trtspec.bench.load.runner import TIMEOUT_S, Server, find_arm, find_arms
from trtspec.bench.load.sample import Sample
from trtspec.bench.load.sweep import BASELINE, SERVED
from trtspec.bench.profile.candidate import OnProgress
from trtspec.bench.profile.measured import TIMED_LENS, Case
from trtspec.bench.profile.options import Limits, Servers
from trtspec.bench.profile.stream_times import StreamTimes, stream_times
from trtspec.core.errors import DeployError
from trtspec.engine.prompts.prompt import Prompt

LEAST_ROUNDS, MOST_ROUNDS = 5, 10
SURE = 0.05  # half the width of a speed-up's interval, as a part of it, with which there are enough rounds
LEAST, A_PLACE = 16, 3  # requests of a round, in all and for each that runs at once
DRAFTS_ALWAYS = "it drafts whatever is asked: name a server without speculation with --baseline"
TELLS = "vLLM tells it with --per-request-spec-decode-metrics summary; our own servers do by themselves"
STREAMS = "serving.streaming: true"
FEWER = "see its log; --set engine.max_batch_size=N profiles with fewer requests at once"

Answer = tuple[Prompt, Sample]


@dataclass(frozen=True)
class Heard:
    """What a server, which drafts `own_len` tokens by itself, said: its answers by draft length, and their times.

    `is_chain` tells whether it drafts at most one token at each place. Times are by requests at once and draft length.
    It `refused` so many prompts, and `failures` are why other requests have no answer.
    """

    endpoint: Endpoint
    own_len: int
    is_chain: bool
    answers: Mapping[int, Sequence[Answer]]
    times: Mapping[Case, StreamTimes]
    refused: int = 0
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class Asking:
    """What is asked: prompts, within limits, with so many requests at once.

    `depth` is how much the recipe drafts, for servers whose answers do not tell. `failures` grow while it asks.
    """

    prompts: Sequence[Prompt]
    limits: Limits
    batches: Sequence[int]
    depth: int
    on_progress: OnProgress
    failures: list[str] = field(default_factory=list)

    async def ask(self, servers: Servers) -> Heard:
        """Ask all of it; raises DeployError for a server that cannot be profiled."""
        async with load_client(TIMEOUT_S) as client:
            arms = await find_arms(client, servers.served, servers.baseline)
            served = arms[SERVED]
            if BASELINE not in arms:
                raise DeployError("there is nothing to compare with", where=served.url, hint=DRAFTS_ALWAYS)
            own, refused = await self._answers(client, served, self.prompts)
            own_len, is_chain = _drafted(own, self.depth, served.url)
            endpoints, answers = {0: arms[BASELINE], own_len: served}, {own_len: own}
            prompts = [prompt for prompt, _ in own]
            if is_chain and not servers.baseline:  # the server reads how much to draft
                for length in self._lens(own_len):
                    endpoints[length] = _told(served, length)
                    answers[length], _ = await self._answers(client, endpoints[length], prompts)
            for other in servers.others:
                length, endpoint, answers_of_it = await self._other(client, other, prompts)
                if length in endpoints:
                    raise DeployError(f"it drafts {length} tokens, as another server does", where=endpoint.url)
                endpoints[length], answers[length] = endpoint, answers_of_it
            times = await self._times(client, endpoints, prompts)
        return Heard(served, own_len, is_chain, answers, times, refused, self.failures)

    async def _other(
        self, client: LoadClient, server: Server, prompts: Sequence[Prompt]
    ) -> tuple[int, Endpoint, list[Answer]]:
        """Return how much another server drafts, by its answers."""
        endpoint = await find_arm(client, server)
        answers, _ = await self._answers(client, endpoint, prompts)
        length, _ = _drafted(answers, 0, endpoint.url)
        return length, endpoint, answers

    def _lens(self, own_len: int) -> list[int]:
        return [length for length in TIMED_LENS if 0 < length < own_len and length <= self.limits.max_draft_len]

    async def _asked(
        self, client: LoadClient, endpoint: Endpoint, prompts: Sequence[Prompt], batch: int
    ) -> tuple[Round, list[str]]:
        """Ask so many at once; also returns why requests failed, which are noted."""
        done = await ask_all(client, endpoint, Closed(batch), prompts, Wanted(self.limits.max_tokens))
        failures = [sample.error for sample in done.samples if not sample.ok and not sample.is_refused]
        self.failures.extend(failures)
        return done, failures

    async def _answers(
        self, client: LoadClient, endpoint: Endpoint, prompts: Sequence[Prompt]
    ) -> tuple[list[Answer], int]:
        """Return the answers of two tokens or more, and how many prompts are refused."""
        self.on_progress("answers", 0, len(prompts))
        done, _ = await self._asked(client, endpoint, prompts, max(self.batches))
        found = [pair for pair in zip(prompts, done.samples, strict=True) if _is_whole(pair[1])]
        if not found:
            reason = done.samples[0].error or "none has two tokens"
            raise DeployError(f"no answer says what is drafted: {reason}", where=endpoint.url)
        self.on_progress("answers", len(prompts), len(prompts))
        return found, sum(sample.is_refused for sample in done.samples)

    async def _times(
        self, client: LoadClient, endpoints: Mapping[int, Endpoint], prompts: Sequence[Prompt]
    ) -> dict[Case, StreamTimes]:
        """Time the streams of each length. All rounds count: a request at its best tells little of many beside it."""
        found: dict[Case, StreamTimes] = {}
        for batch in self.batches:
            for length, rounds in (await self._rounds(client, endpoints, prompts, batch)).items():
                found[batch, length] = stream_times([*chain.from_iterable(rounds)], batch, length)
        return found

    async def _rounds(
        self, client: LoadClient, endpoints: Mapping[int, Endpoint], prompts: Sequence[Prompt], batch: int
    ) -> dict[int, list[list[Sample]]]:
        """Return rounds of each length in turns, as many as make it sure how they compare.

        Every second one goes through the lengths backwards. A round asks the same of each, and goes on in the prompts
        where the one before it ended: what steps take differs with the text, as what is accepted does.
        """
        rounds: dict[int, list[list[Sample]]] = {length: [] for length in sorted(endpoints)}
        for number in range(MOST_ROUNDS):
            asked = _asked_in(number, prompts, batch)
            for length in sorted(endpoints, reverse=bool(number % 2)):
                rounds[length].append(await self._round(client, endpoints[length], asked, batch))
            self.on_progress(f"streams, {batch} at once", number + 1, MOST_ROUNDS)
            if number + 1 >= LEAST_ROUNDS and all(_is_sure(rounds[0], timed) for timed in rounds.values()):
                break
        for length, endpoint in endpoints.items():
            if not any(rounds[length]):
                reason = f"in each round with {batch} at once requests failed: {self.failures[-1]}"
                raise DeployError(reason, where=endpoint.url, hint=FEWER)
        return rounds

    async def _round(
        self, client: LoadClient, endpoint: Endpoint, prompts: Sequence[Prompt], batch: int
    ) -> list[Sample]:
        """Return the whole answers of a closed loop; its last ones end while places are empty, and do not count.

        Empty where requests failed: fewer ran at once than are timed.
        """
        done, failures = await self._asked(client, endpoint, prompts, batch)
        if len(failures) > MAX_FAILED * len(prompts):
            return []
        timed = [sample for sample in done.samples[: len(prompts) - batch] if _is_whole(sample)]
        if not timed:
            raise DeployError(f"no request was answered: {done.samples[0].error}", where=endpoint.url)
        if not any(sample.itl_ms for sample in timed):
            raise DeployError("its answers come in one piece, and streams are timed", where=endpoint.url, hint=STREAMS)
        return timed


def _asked_in(number: int, prompts: Sequence[Prompt], batch: int) -> list[Prompt]:
    """Return the prompts of a round: those that count, the next of all, and as many as run at once behind them."""
    asked = max(LEAST, A_PLACE * batch)
    begin = number * (asked - batch) % len(prompts)
    return list(islice(cycle(prompts), begin, begin + asked))


def _is_sure(alone: Sequence[Sequence[Sample]], timed: Sequence[Sequence[Sample]]) -> bool:
    """Return whether rounds tell how a length compares with the target alone; true where none tells anything."""
    ratios = [_token_ms(theirs) / _token_ms(ours) for theirs, ours in zip(alone, timed, strict=True) if theirs and ours]
    return not ratios or ratio_of_rounds(ratios).half_width <= SURE


def _token_ms(samples: Sequence[Sample]) -> float:
    return sum(sample.e2e_ms for sample in samples) / sum(sample.output_tokens for sample in samples)


def _is_whole(sample: Sample) -> bool:
    return sample.ok and sample.output_tokens > 1


def _told(endpoint: Endpoint, draft_len: int) -> Endpoint:
    """Return the same server asked to draft so much."""
    return replace(endpoint, extra=dict.fromkeys(endpoint.api.without_drafts, draft_len))


def _drafted(answers: Sequence[Answer], depth: int, url: str) -> tuple[int, bool]:
    """Return how many tokens in a row a server drafts, and whether that is all it drafts in a step."""
    samples = [sample for _, sample in answers]
    if not any(sample.drafted for sample in samples):
        raise DeployError("its answers tell of no drafts", where=url, hint=TELLS)
    own_len = max(len(sample.histogram) - 1 for sample in samples)
    own_len = own_len if own_len > 0 else depth
    if not own_len:
        raise DeployError("its answers do not tell how many tokens it drafts", where=url, hint=TELLS)
    steps = sum(sum(sample.histogram) or sample.steps or 0 for sample in samples)
    return own_len, sum(sample.drafted or 0 for sample in samples) <= steps * own_len
