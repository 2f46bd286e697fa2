# SPDX-License-Identifier: Apache-2.0
"""Find the fastest options and draft lengths of a recipe's method by successive halving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.backends.choose import in_process_backend
from trtspec.bench.artifact import open_artifact
from trtspec.bench.profile.build import build, temporary_workspace
from trtspec.bench.profile.candidate import OnProgress, ProfileCandidate, SampleTexts
from trtspec.bench.profile.candidates import recipe_candidate
from trtspec.bench.profile.checkpointing import ResultCache
from trtspec.bench.profile.engine_profiler import generate_responses, measure
from trtspec.bench.profile.measured import CandidateMeasurements
from trtspec.bench.profile.metadata import document_metadata
from trtspec.bench.profile.options import ProfileRequest, ProgressUI
from trtspec.bench.profile.recommend import recommend
from trtspec.bench.profile.sampling import choose_batches, filter_fitting, require_outputs, sample_prompts
from trtspec.bench.profile.serialization import dump_measured, dump_texts, read_measured, read_texts
from trtspec.bench.profile.successive_halving import halve, rung_sizes
from trtspec.bench.profile.tuning import Tuning
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import Method, find_method
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.store.manifest import load_manifest

TREE_DEPTHS = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    16,
)  # for methods with a configurable tree depth; chains try every length


def run(asked: ProfileRequest, screen: ProgressUI) -> Tuning:
    """Measure the recipe's method with every variant of its options; an interrupted run resumes from its checkpoints.

    Raises TrtspecError if the recipe does not speculate or its draft cannot be built.
    """
    loaded = load_recipe(asked.recipe, asked.overrides)
    own = recipe_candidate(loaded)
    if own is None:
        raise TrtspecError("nothing to tune: the recipe's method is none", hint="find a method with trtspec profile")
    finished = ResultCache("tune")
    with temporary_workspace("tune") as folder:
        deepest = replace(own, draft_len=asked.limits.max_draft_len)  # the maximum, also for trees
        candidate = build(asked, deepest, in_process_backend()[0], folder / "own", screen)
        with screen.counting() as on_progress:
            work = _Work(candidate, _texts(asked, candidate, finished, on_progress), finished, on_progress)
            tuning = _halved(work, loaded, asked)
    finished.forget()
    return tuning


@dataclass(frozen=True)
class _Work:
    """The inputs shared by all arms."""

    own: ProfileCandidate
    texts: SampleTexts
    finished: ResultCache
    on_progress: OnProgress

    def measure(self, arm: ProfileCandidate, size: int, batches: Sequence[int]) -> CandidateMeasurements:
        """Return an arm's measurements on the first `size` texts."""
        texts = SampleTexts(self.texts.prompts[:size], self.texts.said[:size], self.texts.kinds[:size])
        depends_on = [_keys(arm.root), arm.options, arm.draft_len, dump_texts(texts), list(batches)]
        part = self.finished.get(depends_on, lambda: dump_measured(measure(arm, texts, batches, self.on_progress)))
        return read_measured(arm, part)


def _texts(
    asked: ProfileRequest, candidate: ProfileCandidate, finished: ResultCache, on_progress: OnProgress
) -> SampleTexts:
    prompts, most = sample_prompts(asked, candidate.root), asked.limits.max_tokens

    def generate_all() -> dict[str, Any]:
        with open_artifact(candidate.root) as artifact:
            return dump_texts(
                generate_responses(artifact, filter_fitting(artifact, prompts, most), most, on_progress)[0]
            )

    depends_on = [_keys(candidate.root), [(each.text, each.kind) for each in prompts], most]
    texts = read_texts(finished.get(depends_on, generate_all))
    require_outputs(texts)
    return texts


def _keys(root: Path) -> list[str]:
    return [step.key for step in load_manifest(root).steps]


def _halved(work: _Work, loaded: LoadedRecipe, asked: ProfileRequest) -> Tuning:
    limits, left_out, found = asked.limits, dict[str, str](), dict[tuple[str, int], CandidateMeasurements]()
    arms = list(_arms(work.own, loaded.recipe.speculation.draft_len, limits.max_draft_len))
    sizes = rung_sizes(len(work.texts.said), len(arms))

    def score(arm: ProfileCandidate, size: int) -> float:
        batches = choose_batches(loaded.recipe, limits) if size == sizes[-1] else [limits.concurrency]
        try:
            measured = found[arm.settings, size] = work.measure(arm, size, batches)
        except TrtspecError as error:
            left_out[arm.settings] = error.message
            return 0.0
        return measured.best(limits.concurrency).expected.value

    rungs = []
    for rung in halve(arms, sizes, score):
        rungs.append(rung)
        work.on_progress("rounds", len(rungs), len(sizes))
    last = [found[arm.settings, sizes[-1]] for arm, value in rungs[-1].scores if value]
    if not last:
        raise TrtspecError("; ".join(left_out.values()))
    best, head = recommend(last, limits.concurrency), document_metadata("tune", asked, loaded, work.own.root)
    return Tuning(head, loaded.recipe.name, work.own.method, work.texts, rungs, found, left_out, best)


def _arms(own: ProfileCandidate, own_len: int | None, max_draft_len: int) -> Iterator[ProfileCandidate]:
    """Yield the recipe's own setting first, then its variants: trees at each depth, chains at the maximum length."""
    method, seen = find_method(own.method), set[tuple[str, int]]()
    for options in (own.options, *_variants(method, own.options)):
        for draft_len in sorted(_lens(method, options, max_draft_len), key=lambda length: length != own_len):
            same = (method.parse(options).model_dump_json(), draft_len)
            if same not in seen:
                seen.add(same)
                yield replace(own, options=options, draft_len=draft_len)


def _variants(method: Method, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the recipe's options with each change proposed by its method, except invalid ones."""
    for change in method.variants(method.parse(options)):
        changed = {key: value for key, value in (options | change).items() if value is not None}
        with suppress(TrtspecError):
            method.parse(changed)
            yield changed


def _lens(method: Method, options: dict[str, Any], max_draft_len: int) -> list[int]:
    """Return the lengths to load an engine with: a chain's maximum, which covers shorter ones, or all tree depths."""
    lens, parsed = [length for length in method.draft_lens if length <= max_draft_len], method.parse(options)
    shapes = {length: method.draft_shape(parsed, length) for length in lens}
    if not lens or shapes[lens[0]].max_tokens == shapes[lens[0]].max_depth:
        return lens[-1:] or [0]
    return [length for length in lens if length in TREE_DEPTHS and shapes[length].max_tokens > shapes[length].max_depth]
