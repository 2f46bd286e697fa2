# SPDX-License-Identifier: Apache-2.0
"""Profile a running server: acceptance from its responses, and step times from its streams.

A server that accepts a draft length is measured at several. Otherwise only its default length and the lengths of
further servers are known: acceptance at other lengths is derived from the next longer one, and step times are
interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.bench.load.runner import runner
from trtspec.bench.profile.acceptance import AcceptanceStats
from trtspec.bench.profile.build import make_candidate
from trtspec.bench.profile.candidate import ProfileCandidate
from trtspec.bench.profile.candidates import CandidateSpec, recipe_candidate
from trtspec.bench.profile.document import Profile, ServerProfile
from trtspec.bench.profile.measured import CandidateMeasurements, least_seconds
from trtspec.bench.profile.metadata import document_metadata
from trtspec.bench.profile.options import ProfileRequest, ProgressUI, ServerSet
from trtspec.bench.profile.recommend import recommend
from trtspec.bench.profile.sampling import choose_batches, sample_prompts
from trtspec.bench.profile.server_client import Answer, ServerMeasurements, ServerProfiler
from trtspec.bench.profile.server_counts import counts_from_sample
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import find_method
from trtspec.recipe.load import load_recipe


def run(asked: ProfileRequest, servers: ServerSet, screen: ProgressUI) -> Profile:
    """Profile a server with the recipe's speculation; raise TrtspecError if it does not report enough."""
    loaded, limits = load_recipe(asked.recipe, asked.overrides), asked.limits
    own = recipe_candidate(loaded)
    if own is None:
        raise TrtspecError("the recipe's method is none, so its server does not speculate", where=str(asked.recipe))
    prompts, batches = sample_prompts(asked, servers.root), choose_batches(loaded.recipe, limits)
    depth = _depth(own, loaded.recipe.speculation.draft_len)
    with screen.counting() as on_progress:
        heard = runner()(ServerProfiler(prompts, limits, batches, depth, on_progress).ask(servers))
    measured = to_measurements(make_candidate(asked, own, Path()), heard, limits.max_draft_len)
    answers, best = heard.answers[heard.own_len], recommend([measured], limits.concurrency, measured.candidate)
    kinds, name = [prompt.kind for prompt, _ in answers], loaded.recipe.name
    head = document_metadata("profile", asked, loaded, servers.root)
    return Profile(head, name, kinds, _tokens(answers), [measured], {}, best, None, heard.refused, _server(heard))


def to_measurements(
    candidate: ProfileCandidate, heard: ServerMeasurements, max_draft_len: int
) -> CandidateMeasurements:
    """Return a server's measurements in the form of a measured candidate."""
    batches = sorted({batch for batch, _ in heard.times})
    seconds = least_seconds({case: [each.step_s] for case, each in heard.times.items()})
    waits = {case: each.first_s for case, each in heard.times.items()}
    answers = heard.answers[heard.own_len]
    return CandidateMeasurements(
        candidate,
        _acceptance(heard, max_draft_len, follows_text=find_method(candidate.method).follows_text),
        seconds,
        {batch: (waits[batch, 0], waits[batch, heard.own_len]) for batch in batches},
        _tokens(answers) / len(answers),
    )


def _acceptance(heard: ServerMeasurements, max_draft_len: int, *, follows_text: bool) -> dict[int, AcceptanceStats]:
    """Return the acceptance of each length: measured, else derived from the next longer drafts."""
    own = {length: _answers_acceptance(answers, length) for length, answers in heard.answers.items()}
    tells = heard.is_chain and any(text.reached for text in own[heard.own_len].texts)
    lens = {*own, *range(1, min(heard.own_len, max_draft_len) + 1)} if tells else {*own}
    shorter = AcceptanceStats.redrafted if follows_text else AcceptanceStats.cut
    return {length: own.get(length) or shorter(own[min(each for each in own if each > length)], length)
            for length in sorted(lens)}  # fmt: skip


def _answers_acceptance(answers: Sequence[Answer], draft_len: int) -> AcceptanceStats:
    counts = tuple(counts_from_sample(sample, draft_len) for _, sample in answers)
    return AcceptanceStats(counts, tuple(prompt.kind for prompt, _ in answers))


def _tokens(answers: Sequence[Answer]) -> int:
    return sum(sample.output_tokens for _, sample in answers)


def _server(heard: ServerMeasurements) -> ServerProfile:
    speeds = {case: each.tokens_per_s for case, each in heard.times.items()}
    endpoint = heard.endpoint
    return ServerProfile(endpoint.url, endpoint.api_name, endpoint.model, heard.own_len, speeds, heard.failures)


def _depth(own: CandidateSpec, draft_len: int | None) -> int:
    method = find_method(own.method)
    return method.shape_for(method.parse(own.options), draft_len).max_depth
