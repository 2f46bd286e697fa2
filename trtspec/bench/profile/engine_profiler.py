# SPDX-License-Identifier: Apache-2.0
"""Profile of a recipe on the torch engine in this process: builds candidates, measures acceptance and step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trtspec.backends.base import in_process_backend
from trtspec.bench.artifact import DRAFT, TARGET, OpenArtifact, engine_settings, open_artifact
from trtspec.bench.parity import check_parity
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts, count_steps
from trtspec.bench.profile.candidates import (
    OnProgress,
    ProfileCandidate,
    ProfileRequest,
    ProgressUI,
    SampleText,
    build,
    choose_batches,
    filter_fitting,
    find_candidates,
    recipe_candidate,
    require_outputs,
    sample_prompts,
    skip_reason,
    temporary_workspace,
)
from trtspec.bench.profile.document import Profile, document_metadata
from trtspec.bench.profile.recommend import TIMED_LENS, CandidateMeasurements, least_seconds, recommend
from trtspec.bench.sources import find_source as find_origin
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineResult
from trtspec.engine.prompts.prompt import Prompt
from trtspec.recipe.load import LoadedRecipe, load_recipe

if TYPE_CHECKING:
    from trtspec.engine.speculator import Speculator


STEPS, LEAST_S, ROUNDS = 8, 0.15, 5
PREFILLS, PREFILL_TOKENS = 16, 8192


def generate_responses(
    artifact: OpenArtifact, prompts: Sequence[Prompt], max_tokens: int, on_progress: OnProgress
) -> tuple[list[SampleText], list[EngineResult]]:
    """Generate the target's greedy responses to prompts, which drafts do not affect.

    Returns the texts of at least two response tokens, and the engine's results for all prompts.
    """
    found = artifact.respond([each.text for each in prompts], max_tokens, partial(on_progress, "target responses"))
    texts = [SampleText(ids, result.ids, each.kind) for (ids, result), each in zip(found, prompts, strict=True)]
    return [text for text in texts if len(text.response) > 1], [result for _, result in found]


def measure(
    candidate: ProfileCandidate, texts: Sequence[SampleText], batches: Sequence[int], on_progress: OnProgress
) -> CandidateMeasurements:
    """Measure a candidate's acceptance by draft length, and its step and prefill times by concurrency."""
    from trtspec.engine.measurement import prefill_seconds, step_times
    from trtspec.engine.speculator import Speculator

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
    timed = sorted({0, max(acceptance), *(each for each in TIMED_LENS if each in acceptance)})
    seconds = step_times(
        speculator,
        [text[:2] for text in texts],
        batches,
        timed,
        steps=STEPS,
        least_s=LEAST_S,
        rounds=ROUNDS,
        max_tokens=PREFILL_TOKENS,
        on_round=lambda done: on_progress(f"{candidate.method}: step times", done + 1, ROUNDS + 1),
    )
    prompts = [text.prompt for text in texts]
    alone, drafting = prefill_seconds(speculator, prompts[:PREFILLS], rounds=ROUNDS, max_tokens=PREFILL_TOKENS)
    prefills = {batch: (batch * alone, batch * drafting) for batch in batches}
    response_len = sum(len(text.response) for text in texts) / len(texts)
    return CandidateMeasurements(candidate, acceptance, least_seconds(seconds), prefills, response_len)


def replayed(
    method: str, speculator: Speculator, texts: Sequence[SampleText], lens: Sequence[int], on_progress: OnProgress
) -> dict[int, AcceptanceStats]:
    """Return the acceptance on the target's responses by draft length, for drafters that support replay."""
    from trtspec.engine.measurement import replay

    pairs, rows, places = [text[:2] for text in texts], speculator.settings.max_batch_size, []
    for start in range(0, len(pairs), rows):
        places += replay(speculator, pairs[start : start + rows], PREFILL_TOKENS)
        on_progress(f"{method}: drafts", len(places), len(pairs))
    kinds = tuple(text.kind for text in texts)
    return {length: AcceptanceStats(tuple(count_steps(each, length) for each in places), kinds) for length in lens}


def _counted(candidate: ProfileCandidate, texts: Sequence[SampleText], depth: int) -> AcceptanceStats:
    """Return the acceptance counted by the engine, for drafters whose drafts depend on earlier outcomes."""
    with open_artifact(candidate.root, candidate.manifest) as artifact:
        requests = [artifact.request_for_ids(text.prompt, len(text.response)) for text in texts]
        found = [result.stats for result in artifact.engine.generate(requests)]
    counts = []
    for each in found:
        reached = (*each.accepted_by_position, *[0] * depth)[:depth]
        counts.append(StepCounts(each.steps, each.drafted, each.accepted, reached, (each.draft_steps,) * depth))
    return AcceptanceStats(tuple(counts), tuple(text.kind for text in texts))


def run(asked: ProfileRequest, screen: ProgressUI) -> Profile:
    """Build and measure all candidates; raises TrtspecError if none can be measured."""
    loaded = load_recipe(asked.recipe, asked.overrides)
    name, engine = in_process_backend()
    found, left_out = find_candidates(loaded, asked, engine)  # validate before long builds
    with temporary_workspace("profile") as folder:
        candidates, own, own_candidate = [], recipe_candidate(loaded), None
        for number, each in enumerate(found):
            try:
                candidates.append(build(asked, each, name, folder / str(number), screen))
                own_candidate = candidates[-1] if each == own else own_candidate
            except TrtspecError as error:
                left_out[each.name] = skip_reason(error)
        _raise_for_none(candidates, left_out)
        return _measure_all(loaded, asked, candidates, own_candidate, left_out, screen)


def _measure_all(
    loaded: LoadedRecipe,
    asked: ProfileRequest,
    candidates: Sequence[ProfileCandidate],
    own: ProfileCandidate | None,
    left_out: dict[str, str],
    screen: ProgressUI,
) -> Profile:
    asked_for, limits = sample_prompts(asked, candidates[0].root), asked.limits
    batches = choose_batches(loaded.recipe, limits)
    with screen.counting() as on_progress:
        with open_artifact(candidates[0].root) as artifact:
            prompts = filter_fitting(artifact, asked_for, limits.max_tokens)
            texts, results = generate_responses(artifact, prompts, limits.max_tokens, on_progress)
            parity = None
            if load_checkpoint(artifact.root / TARGET).quantization.algo:
                source = find_origin(artifact.root, artifact.manifest, None)
                parity = check_parity(artifact, source, prompts, results, on_progress)
        require_outputs(texts)
        measured = []
        for each in candidates:
            try:
                measured.append(measure(each, texts, batches, on_progress))
            except TrtspecError as error:
                left_out[each.name] = skip_reason(error)
    _raise_for_none(measured, left_out)
    best, too_long = recommend(measured, limits.concurrency, own), len(asked_for) - len(prompts)
    head, name = document_metadata("profile", asked, loaded, candidates[0].root), loaded.recipe.name
    kinds, tokens = [text.kind for text in texts], sum(len(text.response) for text in texts)
    return Profile(head, name, kinds, tokens, measured, left_out, best, parity, too_long)


def _raise_for_none(left: Sequence[object], left_out: dict[str, str]) -> None:
    """Raise TrtspecError with the reasons for all skipped candidates if no candidate is left."""
    if not left:
        raise TrtspecError("; ".join(f"{name}: {why}" for name, why in left_out.items()) or "every method was excluded")
