# SPDX-License-Identifier: Apache-2.0
"""Measure a candidate on the torch engine in this process: target responses, drafts and step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtspec.bench.artifact import DRAFT, TARGET, OpenArtifact, engine_settings, open_artifact
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts, count_steps
from trtspec.bench.profile.candidate import OnProgress, ProfileCandidate, SampleTexts
from trtspec.bench.profile.measured import TIMED_LENS, CandidateMeasurements, Case, least_seconds
from trtspec.engine.generation.request import EngineResult, Stats
from trtspec.engine.prompts.prompt import Prompt

if TYPE_CHECKING:
    from trtspec.engine.speculator import Speculator

STEPS, LEAST_S, ROUNDS = 8, 0.15, 5
PREFILLS, PREFILL_TOKENS = 16, 8192


def generate_responses(
    artifact: OpenArtifact, prompts: Sequence[Prompt], max_tokens: int, on_progress: OnProgress
) -> tuple[SampleTexts, list[EngineResult]]:
    """Generate the target's greedy responses to prompts; drafts do not affect them."""
    rows, results, requests = artifact.engine.settings.max_batch_size, list[EngineResult](), []
    for start in range(0, len(prompts), rows):
        asked = [artifact.request(prompt.text, max_tokens) for prompt in prompts[start : start + rows]]
        requests += asked
        results += artifact.engine.generate(asked)
        on_progress("target responses", len(results), len(prompts))
    told = [
        (request.prompt_ids, result.ids, prompt.kind)
        for request, result, prompt in zip(requests, results, prompts, strict=True)
        if len(result.ids) > 1
    ]
    prompt_ids, said, kinds = zip(*told, strict=True) if told else ((), (), ())
    return SampleTexts(tuple(prompt_ids), tuple(said), tuple(kinds)), results


def measure(
    candidate: ProfileCandidate, texts: SampleTexts, batches: Sequence[int], on_progress: OnProgress
) -> CandidateMeasurements:
    """Measure a candidate on the target's responses."""
    from trtspec.engine.speculator import Speculator
    from trtspec.engine.step_times import prefill_seconds

    root = candidate.root
    settings = replace(engine_settings(root, candidate.manifest.recipe), max_batch_size=max(batches))
    draft = root / DRAFT
    speculator = Speculator.load(root / TARGET, draft if draft.is_dir() else None, settings)
    shape = speculator.draft_shape
    is_chain = shape.max_tokens == shape.max_depth
    if speculator.drafter.replays:
        lens = range(1, shape.max_depth + 1) if is_chain else [shape.max_depth]
        acceptance = replayed(candidate.method, speculator, texts, lens, on_progress)
    else:
        acceptance = {shape.max_depth: _counted(candidate, texts, shape.max_depth)}
    seconds = _times(candidate, speculator, texts, batches, [*acceptance], on_progress)
    alone, drafting = prefill_seconds(speculator, texts.prompts[:PREFILLS], rounds=ROUNDS, max_tokens=PREFILL_TOKENS)
    prefills = {batch: (batch * alone, batch * drafting) for batch in batches}
    return CandidateMeasurements(candidate, acceptance, seconds, prefills, texts.tokens / len(texts.said))


def replayed(
    method: str, speculator: Speculator, texts: SampleTexts, lens: Sequence[int], on_progress: OnProgress
) -> dict[int, AcceptanceStats]:
    """Return the acceptance on the target's responses by draft length; only for drafters that support replay."""
    from trtspec.engine.replay import replay

    pairs, rows = list(zip(texts.prompts, texts.said, strict=True)), speculator.settings.max_batch_size
    places = []
    for start in range(0, len(pairs), rows):
        places += replay(speculator, pairs[start : start + rows], PREFILL_TOKENS)
        on_progress(f"{method}: drafts", len(places), len(pairs))
    return {
        draft_len: AcceptanceStats(tuple(count_steps(each, draft_len) for each in places), texts.kinds)
        for draft_len in lens
    }


def _counted(candidate: ProfileCandidate, texts: SampleTexts, depth: int) -> AcceptanceStats:
    """Return the engine's counts, for a drafter whose next draft depends on the previous outcome."""
    with open_artifact(candidate.root, candidate.manifest) as artifact:
        requests = [
            artifact.request_for_ids(prompt, len(said)) for prompt, said in zip(texts.prompts, texts.said, strict=True)
        ]
        counts = [_counts(result.stats, depth) for result in artifact.engine.generate(requests)]
    return AcceptanceStats(tuple(counts), texts.kinds)


def _counts(stats: Stats, depth: int) -> StepCounts:
    reached = (*stats.accepted_by_position, *[0] * depth)[:depth]
    return StepCounts(stats.steps, stats.drafted, stats.accepted, reached, (stats.draft_steps,) * depth)


def _times(
    candidate: ProfileCandidate,
    speculator: Speculator,
    texts: SampleTexts,
    batches: Sequence[int],
    lens: Sequence[int],
    on_progress: OnProgress,
) -> dict[Case, float]:
    from trtspec.engine.step_times import step_times

    timed = sorted({0, max(lens), *(each for each in TIMED_LENS if each in lens)})
    return least_seconds(
        step_times(
            speculator,
            list(zip(texts.prompts, texts.said, strict=True)),
            batches,
            timed,
            steps=STEPS,
            least_s=LEAST_S,
            rounds=ROUNDS,
            max_tokens=PREFILL_TOKENS,
            on_round=lambda done: on_progress(f"{candidate.method}: step times", done + 1, ROUNDS + 1),
        )
    )
