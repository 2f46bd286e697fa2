# SPDX-License-Identifier: Apache-2.0
"""Profile a recipe: build every candidate and measure it on the target's responses."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.backends.choose import in_process_backend
from trtspec.bench.artifact import TARGET, OpenArtifact, open_artifact
from trtspec.bench.parity import check_parity
from trtspec.bench.profile.build import build, temporary_workspace
from trtspec.bench.profile.candidate import OnProgress, ProfileCandidate
from trtspec.bench.profile.candidates import find_candidates, recipe_candidate, skip_reason
from trtspec.bench.profile.document import Profile
from trtspec.bench.profile.engine_profiler import generate_responses, measure
from trtspec.bench.profile.metadata import document_metadata
from trtspec.bench.profile.options import ProfileRequest, ProgressUI
from trtspec.bench.profile.recommend import recommend
from trtspec.bench.profile.sampling import choose_batches, filter_fitting, require_outputs, sample_prompts
from trtspec.bench.source_copies import find_source as find_origin
from trtspec.bench.verification_report import VerificationCheck
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineResult
from trtspec.engine.prompts.prompt import Prompt
from trtspec.recipe.load import LoadedRecipe, load_recipe


def run(asked: ProfileRequest, screen: ProgressUI) -> Profile:
    """Build and measure every candidate; raise TrtspecError if none can be measured."""
    loaded = load_recipe(asked.recipe, asked.overrides)
    name, engine = in_process_backend()
    found, left_out = find_candidates(loaded, asked, engine)  # validated before long builds
    with temporary_workspace("profile") as folder:
        candidates, own, own_candidate = [], recipe_candidate(loaded), None
        for number, each in enumerate(found):
            try:
                candidates.append(build(asked, each, name, folder / str(number), screen))
                own_candidate = candidates[-1] if each == own else own_candidate
            except TrtspecError as error:
                left_out[each.name] = skip_reason(error)
        _raise_for_none(candidates, left_out)
        return _measure(loaded, asked, candidates, own_candidate, left_out, screen)


def _measure(
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
            parity = _parity(artifact, prompts, results, on_progress)
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
    return Profile(head, name, texts.kinds, texts.tokens, measured, left_out, best, parity, too_long)


def _raise_for_none(left: Sequence[object], left_out: dict[str, str]) -> None:
    """Raise TrtspecError with all reasons if no candidate is left."""
    if not left:
        raise TrtspecError("; ".join(f"{name}: {why}" for name, why in left_out.items()) or "every method was excluded")


def _parity(
    artifact: OpenArtifact, prompts: Sequence[Prompt], results: Sequence[EngineResult], on_progress: OnProgress
) -> VerificationCheck | None:
    """Return the parity of a quantized target with its source, or None for other targets."""
    if not load_checkpoint(artifact.root / TARGET).quantization.algo:
        return None
    source = find_origin(artifact.root, artifact.manifest, None)
    return check_parity(artifact, source, prompts, results, on_progress)
