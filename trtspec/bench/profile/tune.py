# SPDX-License-Identifier: Apache-2.0
"""Search for the fastest options and draft lengths of a recipe's method by successive halving.

All arms run on few texts, the better half of them on twice as many, and the last ones on all texts (Jamieson and
Talwalkar 2016, arXiv:1502.07943). An arm is one combination of options and draft length. The first arm is the user's
current setting and is never dropped. Results of completed parts are cached by their inputs, so that an interrupted
command resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Generic, TypeVar

from trtspec.backends.base import in_process_backend
from trtspec.bench.artifact import open_artifact
from trtspec.bench.decision import decide
from trtspec.bench.profile.candidates import (
    OnProgress,
    ProfileCandidate,
    ProfileRequest,
    ProgressUI,
    SampleText,
    build,
    choose_batches,
    filter_fitting,
    recipe_candidate,
    require_outputs,
    sample_prompts,
    temporary_workspace,
)
from trtspec.bench.profile.document import document_metadata
from trtspec.bench.profile.engine_profiler import generate_responses, measure
from trtspec.bench.profile.recommend import (
    CandidateMeasurements,
    ExpectedSpeedup,
    Recommendation,
    dump_measured,
    read_measured,
    recommend,
)
from trtspec.core.errors import TrtspecError
from trtspec.core.files import replace_file
from trtspec.core.installation import __version__
from trtspec.core.paths import cache_dir
from trtspec.methods.base import Method, find_method
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.store.artifact import load_manifest
from trtspec.store.digest import dump_checksummed, load_checksummed

SCHEMA = "trtspec.finished/2"
Arm = TypeVar("Arm")
LEAST_TEXTS = 4
# Depths to try for methods with a configurable tree depth; for chains, every length is tried.
TREE_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


class ResultCache:
    """Cache of the completed parts of a long-running command."""

    def __init__(self, command: str) -> None:
        self._root = cache_dir() / command
        self._used: list[Path] = []

    def get_or_compute(self, depends_on: Any, compute: Callable[[], Any]) -> Any:
        """Return a part of the work from the cache, or compute and cache it.

        The part and `depends_on` are JSON values. The cache key consists of `depends_on`, the trtspec version and the
        machine.
        """
        whole = [__version__, platform.processor(), platform.node(), os.cpu_count(), depends_on]
        key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        path = self._root / f"{key}.json"
        self._used.append(path)
        if kept := load_checksummed(SCHEMA, path):
            return kept["part"]
        part = compute()
        self._root.mkdir(parents=True, exist_ok=True)
        replace_file(path, dump_checksummed(SCHEMA, {"part": part}), mode=0o600)
        return part

    def clear(self) -> None:
        """Remove all parts used by this command, after its work is complete."""
        for path in self._used:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Rung(Generic[Arm]):
    """One round of successive halving: number of texts, arms by descending score, and number of arms that advance."""

    texts: int
    scores: Sequence[tuple[Arm, float]]
    kept: int


def rung_sizes(texts: int, arms: int) -> list[int]:
    """Return the number of texts of each round; the last round uses all texts."""
    sizes = [texts]
    while 2 ** len(sizes) < arms and sizes[0] // 2 >= LEAST_TEXTS:
        sizes.insert(0, sizes[0] // 2)
    return sizes


def halve(arms: Sequence[Arm], sizes: Sequence[int], score: Callable[[Arm, int], float]) -> Iterator[Rung[Arm]]:
    """Yield the rounds of successive halving.

    `score` rates an arm on the given number of texts. For equal scores, the earlier arm advances.
    """
    own, left = arms[0], list(arms)
    for place, size in enumerate(sizes):
        scores = sorted(((arm, score(arm, size)) for arm in left), key=lambda pair: -pair[1])
        kept = len(scores) if place == len(sizes) - 1 else ceil(len(scores) / 2)
        better = [arm for arm, _ in scores[:kept]]
        yield Rung(size, scores, kept)
        left = better if own in better else [own, *better]


@dataclass(frozen=True)
class Tuning:
    """Result of tuning: rounds, measurements by (settings, texts), skipped arms with reasons, and recommendation."""

    about: Mapping[str, Any]  # the document's metadata
    name: str
    method: str
    texts: Sequence[SampleText]
    rungs: Sequence[Rung[ProfileCandidate]]
    measured: Mapping[tuple[str, int], CandidateMeasurements]
    left_out: dict[str, str]
    recommendation: Recommendation

    @property
    def drafts_with(self) -> str:
        return self.rungs[0].scores[0][0].name if self.rungs and self.rungs[0].scores else self.method

    def best_in_round(self, arm: ProfileCandidate, rung: Rung[ProfileCandidate]) -> ExpectedSpeedup | None:
        """Return an arm's expected speed-up in a round, or None if it could not be measured."""
        found = self.measured.get((arm.settings, rung.texts))
        return found.best(self.recommendation.batch) if found else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "format_version": 1,
            **decide(self.recommendation.proposal).as_dict(),
            **self.about,
            "name": self.name,
            "method": self.method,
            "prompts": len(self.texts),
            "tokens": sum(len(text.response) for text in self.texts),
            "rounds": [{"prompts": rung.texts, "tried": self._tried(rung)} for rung in self.rungs],
            "left_out": [{"settings": name, "why": why} for name, why in self.left_out.items()],
            "recommendation": self.recommendation.as_dict(),
        }

    def _tried(self, rung: Rung[ProfileCandidate]) -> list[dict[str, Any]]:
        arms = []
        for place, (arm, _) in enumerate(rung.scores):
            best = self.best_in_round(arm, rung)
            measured = best.as_dict() if best else {"batch": self.recommendation.batch, "draft_len": arm.draft_len}
            arms.append({"options": arm.options, **measured, "kept": place < rung.kept})
        return arms


def run(asked: ProfileRequest, screen: ProgressUI) -> Tuning:
    """Tune the options of the recipe's method; an interrupted run resumes from the results of completed parts.

    Raises TrtspecError if the recipe does not speculate or its draft cannot be built.
    """
    loaded = load_recipe(asked.recipe, asked.overrides)
    own = recipe_candidate(loaded)
    if own is None:
        raise TrtspecError("nothing to tune: the recipe's method is none", hint="find a method with trtspec profile")
    finished = ResultCache("tune")
    with temporary_workspace("tune") as folder:
        deepest = replace(own, draft_len=asked.limits.max_draft_len)  # trees are built at the maximum depth too
        candidate = build(asked, deepest, in_process_backend()[0], folder / "own", screen)
        with screen.counting() as on_progress:
            tuning = _halved(asked, loaded, candidate, finished, on_progress)
    finished.clear()
    return tuning


def _texts(
    asked: ProfileRequest, candidate: ProfileCandidate, finished: ResultCache, on_progress: OnProgress
) -> list[SampleText]:
    prompts, most = sample_prompts(asked, candidate.root), asked.limits.max_tokens

    def generate_all() -> list[SampleText]:
        with open_artifact(candidate.root) as artifact:
            return generate_responses(artifact, filter_fitting(artifact, prompts, most), most, on_progress)[0]

    depends_on = [_keys(candidate.root), [(each.text, each.kind) for each in prompts], most]
    saved = finished.get_or_compute(depends_on, generate_all)
    texts = [SampleText(tuple(prompt), tuple(response), kind) for prompt, response, kind in saved]
    require_outputs(texts)
    return texts


def _keys(root: Path) -> list[str]:
    return [step.key for step in load_manifest(root).steps]


def _halved(
    asked: ProfileRequest, loaded: LoadedRecipe, own: ProfileCandidate, finished: ResultCache, on_progress: OnProgress
) -> Tuning:
    limits, left_out, found = asked.limits, dict[str, str](), dict[tuple[str, int], CandidateMeasurements]()
    texts = _texts(asked, own, finished, on_progress)
    arms = list(_arms(own, loaded.recipe.speculation.draft_len, limits.max_draft_len))
    sizes = rung_sizes(len(texts), len(arms))

    def score(arm: ProfileCandidate, size: int) -> float:
        batches = choose_batches(loaded.recipe, limits) if size == sizes[-1] else [limits.concurrency]
        depends_on = [_keys(arm.root), arm.options, arm.draft_len, texts[:size], batches]
        try:
            saved = finished.get_or_compute(
                depends_on, lambda: dump_measured(measure(arm, texts[:size], batches, on_progress))
            )
        except TrtspecError as error:
            left_out[arm.settings] = error.message
            return 0.0
        measured = found[arm.settings, size] = read_measured(arm, saved)
        return measured.best(limits.concurrency).expected.value

    rungs = []
    for rung in halve(arms, sizes, score):
        rungs.append(rung)
        on_progress("rounds", len(rungs), len(sizes))
    last = [found[arm.settings, sizes[-1]] for arm, value in rungs[-1].scores if value]
    if not last:
        raise TrtspecError("; ".join(left_out.values()))
    best, head = recommend(last, limits.concurrency), document_metadata("tune", asked, loaded, own.root)
    return Tuning(head, loaded.recipe.name, own.method, texts, rungs, found, left_out, best)


def _arms(own: ProfileCandidate, own_len: int | None, max_draft_len: int) -> Iterator[ProfileCandidate]:
    """Yield the recipe's own setting, then its variants: trees at each depth, chains at the maximum length."""
    method, seen = find_method(own.method), set[tuple[str, int]]()
    for options in (own.options, *_variants(method, own.options)):
        for draft_len in sorted(_lens(method, options, max_draft_len), key=lambda length: length != own_len):
            same = (method.parse(options).model_dump_json(), draft_len)
            if same not in seen:
                seen.add(same)
                yield replace(own, options=options, draft_len=draft_len)


def _variants(method: Method, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the recipe's options with each change that its method proposes, except invalid combinations."""
    for change in method.variants(method.parse(options)):
        changed = {key: value for key, value in (options | change).items() if value is not None}
        with suppress(TrtspecError):
            method.parse(changed)
            yield changed


def _lens(method: Method, options: dict[str, Any], max_draft_len: int) -> list[int]:
    """Return the draft lengths to try: a chain's maximum, which covers shorter ones, or all tree depths."""
    lens, parsed = [length for length in method.draft_lens if length <= max_draft_len], method.parse(options)
    shapes = {length: method.draft_shape(parsed, length) for length in lens}
    if not lens or shapes[lens[0]].max_tokens == shapes[lens[0]].max_depth:
        return lens[-1:] or [0]
    return [length for length in lens if length in TREE_DEPTHS and shapes[length].max_tokens > shapes[length].max_depth]
