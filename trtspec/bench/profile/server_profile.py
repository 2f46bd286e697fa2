# SPDX-License-Identifier: Apache-2.0
"""Profile of a running server: acceptance from its responses, and step times from its streams.

A server that accepts a draft length per request is measured at several lengths. Otherwise only its default length and
the lengths of other servers are measured. Acceptance at other lengths is derived from the next longer one, and step
times are interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice
from pathlib import Path

from trtspec.bench.load.api import LoadSampling
from trtspec.bench.load.arrivals import Closed
from trtspec.bench.load.client import (
    BASELINE,
    SERVED,
    TIMEOUT_S,
    Endpoint,
    LoadClient,
    find_arms,
    find_endpoint,
    load_client,
    runner,
)
from trtspec.bench.load.intervals import ratio_of_rounds
from trtspec.bench.load.rounds import MAX_FAILED, Round, ask_all
from trtspec.bench.load.sample import MS, RequestSample
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts
from trtspec.bench.profile.candidates import (
    OnProgress,
    ProfileRequest,
    ProgressUI,
    SearchLimits,
    ServerSet,
    choose_batches,
    make_candidate,
    recipe_candidate,
    sample_prompts,
)
from trtspec.bench.profile.document import Profile, ServerProfile, document_metadata
from trtspec.bench.profile.recommend import TIMED_LENS, CandidateMeasurements, Case, least_seconds, recommend
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.engine.prompts.prompt import Prompt
from trtspec.methods.base import find_method
from trtspec.recipe.load import load_recipe

LEAST_ROUNDS, MOST_ROUNDS = 5, 10
MAX_REL_CI = 0.05  # relative half-width of a speed-up's interval that ends the rounds
LEAST, REQUESTS_PER_SLOT = 16, 3  # minimum requests per round: in total, and for each slot
DRAFTS_ALWAYS = "it cannot switch drafting off; give a server without speculation with --baseline"
TELLS = "start vLLM with --per-request-spec-decode-metrics summary; trtspec servers always report drafts"
STREAMS = "serving.streaming: true"
FEWER = "check its log, or profile fewer concurrent requests with --set engine.max_batch_size=N"
Answer = tuple[Prompt, RequestSample]


def counts_from_sample(sample: RequestSample, draft_len: int) -> StepCounts:
    """Return the step counts of one response at the requested draft length.

    The server's histogram covers the steps that verified a draft. Every other step yields one token, and the prefill
    yields the first.
    """
    drafted, accepted = sample.drafted or 0, sample.accepted or 0
    drafting = sum(sample.histogram)
    steps = max(1, drafting, sample.output_tokens - 1 - accepted)
    if not sample.histogram:
        return StepCounts(steps, drafted, accepted)
    reached = tuple(sum(sample.histogram[place:]) for place in range(1, draft_len + 1))
    missing = _missing(max(0, drafting * draft_len - drafted), [drafting - seen for seen in reached])
    return StepCounts(steps, drafted, accepted, reached, tuple(drafting - few for few in missing))


def _missing(tokens: int, rejected: Sequence[int]) -> list[int]:
    """Estimate the number of steps that lacked each draft position, from the total number of missing tokens.

    Drafts are shorter at the end of a text, where the remaining length limits them, so later positions are missing more
    often. A position can be missing only in steps that did not accept it (`rejected`).
    """
    found, places = list[int](), range(len(rejected))
    for place in places:
        share = round(tokens * place / max(1, sum(places[place:])))
        found.append(min(rejected[place], max(share, tokens - sum(rejected[place + 1 :]))))
        tokens -= found[-1]
    return found


@dataclass(frozen=True)
class StreamTimes:
    """Mean seconds of a step, mean seconds to the first token, and tokens per second at one concurrency."""

    step_s: float
    first_s: float
    tokens_per_s: float


def stream_times(samples: Sequence[RequestSample], batch: int, draft_len: int) -> StreamTimes:
    """Return the times of responses of at least two tokens that ran at concurrency `batch` throughout.

    The step time is the time per token after the first, multiplied by the tokens per step.
    """
    counts = [counts_from_sample(sample, draft_len) for sample in samples]
    streamed_s = sum(sample.e2e_ms - sample.ttft_ms for sample in samples) / MS
    token_s = streamed_s / sum(sample.output_tokens - 1 for sample in samples)
    step_tokens = 1 + sum(each.accepted for each in counts) / sum(each.steps for each in counts)
    whole_s = sum(sample.e2e_ms for sample in samples) / MS
    return StreamTimes(
        token_s * step_tokens,
        sum(sample.ttft_ms for sample in samples) / MS / len(samples),
        batch * _tokens(samples) / whole_s,
    )


@dataclass(frozen=True)
class ServerMeasurements:
    """Measurements of a server whose default draft length is `own_len`."""

    endpoint: Endpoint
    own_len: int
    is_chain: bool  # the server drafts at most one token per position
    answers: Mapping[int, Sequence[Answer]]  # responses by draft length
    times: Mapping[Case, StreamTimes]
    refused: int = 0  # number of rejected prompts
    failures: Sequence[str] = ()  # errors of other failed requests


@dataclass(frozen=True)
class ServerProfiler:
    """Profiler of a running server: prompts, limits and concurrencies to measure."""

    prompts: Sequence[Prompt]
    limits: SearchLimits
    batches: Sequence[int]
    depth: int  # the recipe's draft depth, for servers that do not report it
    on_progress: OnProgress
    failures: list[str] = field(default_factory=list)  # errors of failed requests

    async def ask(self, servers: ServerSet) -> ServerMeasurements:
        """Run all measurements; raises DeployError if the server cannot be profiled."""
        async with load_client(TIMEOUT_S) as client:
            arms = await find_arms(client, servers.served, servers.baseline)
            served = arms[SERVED]
            if BASELINE not in arms:
                raise DeployError("no baseline to compare with", where=served.url, hint=DRAFTS_ALWAYS)
            own, refused = await self._answers(client, served, self.prompts)
            own_len, is_chain = _drafted(own, self.depth, served.url)
            endpoints, answers = {0: arms[BASELINE], own_len: served}, {own_len: own}
            prompts = [prompt for prompt, _ in own]
            if is_chain and not servers.baseline:  # the server accepts a draft length per request
                lens = [each for each in TIMED_LENS if 0 < each < own_len and each <= self.limits.max_draft_len]
                for length in lens:
                    endpoints[length] = replace(served, extra=dict.fromkeys(served.api.without_drafts, length))
                    answers[length], _ = await self._answers(client, endpoints[length], prompts)
            for other in servers.others:
                endpoint = await find_endpoint(client, other)
                found, _ = await self._answers(client, endpoint, prompts)
                length, _ = _drafted(found, 0, endpoint.url)
                if length in endpoints:
                    raise DeployError(f"it drafts {length} tokens, the same as another server", where=endpoint.url)
                endpoints[length], answers[length] = endpoint, found
            times: dict[Case, StreamTimes] = {}
            for batch in self.batches:
                rounds = await self._rounds(client, endpoints, prompts, batch)
                times |= {(batch, length): stream_times(timed, batch, length) for length, timed in rounds.items()}
        return ServerMeasurements(served, own_len, is_chain, answers, times, refused, self.failures)

    async def _send(
        self, client: LoadClient, endpoint: Endpoint, prompts: Sequence[Prompt], batch: int
    ) -> tuple[Round, list[str]]:
        """Send prompts at a concurrency; return the round and the errors of its failed requests."""
        done = await ask_all(client, endpoint, Closed(batch), prompts, LoadSampling(self.limits.max_tokens))
        failures = [sample.error for sample in done.samples if not sample.ok and not sample.is_refused]
        self.failures.extend(failures)
        return done, failures

    async def _answers(
        self, client: LoadClient, endpoint: Endpoint, prompts: Sequence[Prompt]
    ) -> tuple[list[Answer], int]:
        """Return the responses of at least two tokens, and the number of rejected prompts."""
        self.on_progress("responses", 0, len(prompts))
        done, _ = await self._send(client, endpoint, prompts, max(self.batches))
        found = [pair for pair in zip(prompts, done.samples, strict=True) if _is_usable(pair[1])]
        if not found:
            reason = done.samples[0].error or "all have fewer than two tokens"
            raise DeployError(f"no usable response: {reason}", where=endpoint.url)
        self.on_progress("responses", len(prompts), len(prompts))
        return found, sum(sample.is_refused for sample in done.samples)

    async def _rounds(
        self, client: LoadClient, endpoints: Mapping[int, Endpoint], prompts: Sequence[Prompt], batch: int
    ) -> dict[int, list[RequestSample]]:
        """Return the responses by draft length, in rounds until the speed-ups are precise enough.

        All rounds count, because the fastest request is not representative. Every second round runs the lengths in
        reverse order. A round sends the same prompts for each length, and the next round continues in the prompt list,
        because step times and acceptance depend on the text.
        """
        rounds: dict[int, list[list[RequestSample]]] = {length: [] for length in sorted(endpoints)}
        for number in range(MOST_ROUNDS):
            asked = _round_prompts(number, prompts, batch)
            for length in sorted(endpoints, reverse=bool(number % 2)):
                rounds[length].append(await self._round(client, endpoints[length], asked, batch))
            self.on_progress(f"streams, {batch} concurrent", number + 1, MOST_ROUNDS)
            if number + 1 >= LEAST_ROUNDS and all(_is_precise(rounds[0], timed) for timed in rounds.values()):
                break
        for length, endpoint in endpoints.items():
            if not any(rounds[length]):
                reason = f"requests failed in each round of {batch} concurrent requests: {self.failures[-1]}"
                raise DeployError(reason, where=endpoint.url, hint=FEWER)
        return {length: [*chain.from_iterable(timed)] for length, timed in rounds.items()}

    async def _round(
        self, client: LoadClient, endpoint: Endpoint, prompts: Sequence[Prompt], batch: int
    ) -> list[RequestSample]:
        """Return the complete responses of a closed loop, without the last ones, which end at a lower concurrency.

        Returns an empty list if too many requests failed, because the concurrency was then too low.
        """
        done, failures = await self._send(client, endpoint, prompts, batch)
        if len(failures) > MAX_FAILED * len(prompts):
            return []
        timed = [sample for sample in done.samples[: len(prompts) - batch] if _is_usable(sample)]
        if not timed:
            raise DeployError(f"all requests failed: {done.samples[0].error}", where=endpoint.url)
        if not any(sample.itl_ms for sample in timed):
            message = "its responses are not streamed, so they cannot be timed"
            raise DeployError(message, where=endpoint.url, hint=STREAMS)
        return timed


def _round_prompts(number: int, prompts: Sequence[Prompt], batch: int) -> list[Prompt]:
    """Return the prompts of a round: the next ones to measure, followed by `batch` that keep the concurrency full."""
    asked = max(LEAST, REQUESTS_PER_SLOT * batch)
    begin = number * (asked - batch) % len(prompts)
    return list(islice(cycle(prompts), begin, begin + asked))


def _is_precise(alone: Sequence[Sequence[RequestSample]], timed: Sequence[Sequence[RequestSample]]) -> bool:
    """Return True if the speed-up of a draft length is precise enough, or if no round is usable."""
    ratios = [_token_ms(theirs) / _token_ms(ours) for theirs, ours in zip(alone, timed, strict=True) if theirs and ours]
    return not ratios or ratio_of_rounds(ratios).half_width <= MAX_REL_CI


def _token_ms(samples: Sequence[RequestSample]) -> float:
    return sum(sample.e2e_ms for sample in samples) / _tokens(samples)


def _is_usable(sample: RequestSample) -> bool:
    return sample.ok and sample.output_tokens > 1


def _drafted(answers: Sequence[Answer], depth: int, url: str) -> tuple[int, bool]:
    """Return a server's draft depth, and True if its draft is a chain; raises DeployError if neither is reported."""
    samples = [sample for _, sample in answers]
    if not any(sample.drafted for sample in samples):
        raise DeployError("its responses do not report drafts", where=url, hint=TELLS)
    own_len = max(len(sample.histogram) - 1 for sample in samples)
    own_len = own_len if own_len > 0 else depth
    if not own_len:
        raise DeployError("its responses do not report the draft length", where=url, hint=TELLS)
    steps = sum(sum(sample.histogram) or sample.steps or 0 for sample in samples)
    return own_len, sum(sample.drafted or 0 for sample in samples) <= steps * own_len


def run(asked: ProfileRequest, servers: ServerSet, screen: ProgressUI) -> Profile:
    """Profile a server with the recipe's speculation; raises TrtspecError if the server does not report drafts."""
    loaded, limits = load_recipe(asked.recipe, asked.overrides), asked.limits
    own = recipe_candidate(loaded)
    if own is None:
        raise TrtspecError("the recipe's method is none, so its server does not speculate", where=str(asked.recipe))
    prompts, batches = sample_prompts(asked, servers.root), choose_batches(loaded.recipe, limits)
    method = find_method(own.method)
    depth = method.shape_for(method.parse(own.options), own.draft_len).max_depth
    with screen.counting() as on_progress:
        heard = runner()(ServerProfiler(prompts, limits, batches, depth, on_progress).ask(servers))
    answers = heard.answers[heard.own_len]
    tokens = _tokens([sample for _, sample in answers])
    measured = CandidateMeasurements(
        make_candidate(asked, own, Path()),
        _acceptance(heard, limits.max_draft_len, follows_text=method.follows_text),
        least_seconds({case: [each.step_s] for case, each in heard.times.items()}),
        {batch: (heard.times[batch, 0].first_s, heard.times[batch, heard.own_len].first_s) for batch in batches},
        tokens / len(answers),
    )
    best = recommend([measured], limits.concurrency, measured.candidate)
    kinds, name = [prompt.kind for prompt, _ in answers], loaded.recipe.name
    head = document_metadata("profile", asked, loaded, servers.root)
    speeds, endpoint = {case: each.tokens_per_s for case, each in heard.times.items()}, heard.endpoint
    server = ServerProfile(endpoint.url, endpoint.api_name, endpoint.model, heard.own_len, speeds, heard.failures)
    return Profile(head, name, kinds, tokens, [measured], {}, best, None, heard.refused, server)


def _acceptance(heard: ServerMeasurements, max_draft_len: int, *, follows_text: bool) -> dict[int, AcceptanceStats]:
    """Return the acceptance by draft length: measured, or derived from the next longer measured length."""
    own = {
        length: AcceptanceStats(
            tuple(counts_from_sample(sample, length) for _, sample in answers),
            tuple(prompt.kind for prompt, _ in answers),
        )
        for length, answers in heard.answers.items()
    }
    tells = heard.is_chain and any(text.reached for text in own[heard.own_len].texts)
    lens = {*own, *range(1, min(heard.own_len, max_draft_len) + 1)} if tells else {*own}
    shorter = AcceptanceStats.redrafted if follows_text else AcceptanceStats.cut
    return {length: own.get(length) or shorter(own[min(each for each in own if each > length)], length)
            for length in sorted(lens)}  # fmt: skip


def _tokens(samples: Sequence[RequestSample]) -> int:
    return sum(sample.output_tokens for sample in samples)
