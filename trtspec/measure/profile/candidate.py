# SPDX-License-Identifier: Apache-2.0
"""One candidate, measured: how much of its drafts the target's texts go on with, and what its steps take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.artifacts.manifest import Manifest, load_manifest
from trtspec.generation.request import Result, Stats
from trtspec.measure.artifact import DRAFT, TARGET, OpenArtifact, engine_settings, open_artifact
from trtspec.measure.profile.acceptance import Acceptance, Counts, Estimate, count_steps
from trtspec.prompts.prompt import Prompt

if TYPE_CHECKING:
    from trtspec.torch_engine.speculator import Speculator

MEASURED_LENS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)  # what lies between is interpolated
STEPS, ROUNDS = 8, 5
AS_GOOD = 0.99  # of the fastest; a shorter draft is less work where fewer tokens are accepted
PREFILLS, PREFILL_TOKENS = 16, 8192

OnProgress = Callable[[str, int, int], None]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Texts:
    """Prompts that the target answered with two tokens or more, its greedy answers, and the prompts' kinds."""

    prompts: tuple[Tokens, ...]
    said: tuple[Tokens, ...]
    kinds: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Return how many tokens were said."""
        return sum(map(len, self.said))


@dataclass(frozen=True)
class Candidate:
    """What may draft: a method with its options, the recipe's section of its draft (None without one), its artifact.

    `takes_draft_len` tells whether a recipe says how much it drafts; else its options do. Options and `draft_len` are
    tried whatever the artifact was built with; 0 stands for its own length.
    """

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]
    takes_draft_len: bool
    root: Path
    draft_len: int = 0

    @property
    def draft(self) -> str | None:
        """Return the draft as it was named."""
        return self.source["model"] if self.source else None

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.method} ({self.draft})" if self.draft else self.method

    @property
    def settings(self) -> str:
        """Return what it drafts with, in words; two candidates of one artifact differ in it."""
        length = {"draft_len": self.draft_len} if self.draft_len else {}
        return ", ".join(f"{key} {_short(value)}" for key, value in (length | self.options).items()) or "defaults"

    @cached_property
    def manifest(self) -> Manifest:
        """Return the artifact's manifest as if it had been built with these options."""
        found = load_manifest(self.root)
        changes: dict[str, Any] = {"options": self.options} | ({"draft_len": self.draft_len} if self.draft_len else {})
        speculation = found.recipe.speculation.model_copy(update=changes)
        return found.model_copy(update={"recipe": found.recipe.model_copy(update={"speculation": speculation})})


def _short(value: Any) -> str:
    return f"of {len(value)}" if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Speedup:
    """How many times as fast as the target alone `batch` requests at once are expected to be with a draft length."""

    batch: int
    draft_len: int
    expected: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Return its keys of the document."""
        value, low, high = self.expected.as_list()
        return {"batch": self.batch, "draft_len": self.draft_len, "speedup": value, "interval": [low, high]}


@dataclass(frozen=True)
class Measured:
    """Acceptance by draft length, and the seconds of a step by (requests, draft_len), 0 for the target alone.

    `prefill` are the seconds that a prompt takes, of the target alone and with what drafts; `answer_len` is the mean
    answer's tokens.
    """

    candidate: Candidate
    acceptance: dict[int, Acceptance]
    seconds: dict[tuple[int, int], float]
    prefill: tuple[float, float] = (0.0, 0.0)
    answer_len: float = math.inf

    @property
    def batches(self) -> list[int]:
        """Return how many requests at once were measured, ascending."""
        return sorted({batch for batch, _ in self.seconds})

    @cached_property
    def speedups(self) -> list[Speedup]:
        """Return the expected speed-up of every draft length at every batch."""
        return [self._speedup(batch, draft_len) for batch in self.batches for draft_len in self.acceptance]

    def best(self, batch: int) -> Speedup:
        """Return the fastest draft length for so many requests at once, the shortest of those as good as it."""
        found = [self._speedup(batch, draft_len) for draft_len in self.acceptance]
        fastest = max(each.expected.value for each in found)
        return next(each for each in found if each.expected.value >= AS_GOOD * fastest)

    def step_seconds(self, batch: int, draft_len: int) -> float:
        """Return what a step takes; between measured lengths and batches on the line between their neighbours."""
        if batch not in self.batches:
            fewer, more, share = _between(self.batches, batch)
            return self.step_seconds(fewer, draft_len) * (1 - share) + self.step_seconds(more, draft_len) * share
        if (batch, draft_len) in self.seconds:
            return self.seconds[batch, draft_len]
        low, high, share = _between(sorted(each for rows, each in self.seconds if rows == batch), draft_len)
        return self.seconds[batch, low] * (1 - share) + self.seconds[batch, high] * share

    def _speedup(self, batch: int, draft_len: int) -> Speedup:
        """Compare the seconds of a token: of its step, and of its part of the prefills, for which all others wait."""
        tokens, steps = self.acceptance[draft_len].token_weighted, self.answer_len - 1
        prefills = [batch * seconds / steps for seconds in self.prefill]
        alone, step = self.step_seconds(batch, 0) + prefills[0], self.step_seconds(batch, draft_len)

        def times(step_tokens: float) -> float:
            return alone / (step / step_tokens + prefills[1])

        return Speedup(batch, draft_len, Estimate(times(tokens.value), times(tokens.low), times(tokens.high)))


def _between(measured: Sequence[int], value: int) -> tuple[int, int, float]:
    """Return a value's neighbours among ascending ones, and how far it is from the first to the second."""
    low, high = next(pair for pair in pairwise(measured) if pair[0] < value < pair[1])
    return low, high, (value - low) / (high - low)


def say(
    artifact: OpenArtifact, prompts: Sequence[Prompt], max_tokens: int, on_progress: OnProgress
) -> tuple[Texts, list[Result]]:
    """Let the target of an artifact answer prompts greedily, whatever drafts for it."""
    rows, results, requests = artifact.engine.settings.max_batch_size, list[Result](), []
    for start in range(0, len(prompts), rows):
        asked = [artifact.request(prompt.text, max_tokens) for prompt in prompts[start : start + rows]]
        requests += asked
        results += artifact.engine.generate(asked)
        on_progress("the target's answers", len(results), len(prompts))
    told = [
        (request.prompt_ids, result.ids, prompt.kind)
        for request, result, prompt in zip(requests, results, prompts, strict=True)
        if len(result.ids) > 1
    ]
    prompt_ids, said, kinds = zip(*told, strict=True) if told else ((), (), ())
    return Texts(tuple(prompt_ids), tuple(said), tuple(kinds)), results


def measure(candidate: Candidate, texts: Texts, batches: Sequence[int], on_progress: OnProgress) -> Measured:
    """Measure a candidate on what its target says."""
    from trtspec.torch_engine.speculator import Speculator
    from trtspec.torch_engine.step_times import prefill_seconds

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
    prefill = prefill_seconds(speculator, texts.prompts[:PREFILLS], rounds=ROUNDS, max_tokens=PREFILL_TOKENS)
    return Measured(candidate, acceptance, seconds, prefill, texts.tokens / len(texts.said))


def replayed(
    method: str, speculator: Speculator, texts: Texts, lens: Sequence[int], on_progress: OnProgress
) -> dict[int, Acceptance]:
    """Return by draft length how far drafts are accepted on what the target said; only for drafters that replay."""
    from trtspec.torch_engine.replay import replay

    pairs, rows = list(zip(texts.prompts, texts.said, strict=True)), speculator.settings.max_batch_size
    places = []
    for start in range(0, len(pairs), rows):
        places += replay(speculator, pairs[start : start + rows], PREFILL_TOKENS)
        on_progress(f"{method}: drafts", len(places), len(pairs))
    return {
        draft_len: Acceptance(tuple(count_steps(each, draft_len) for each in places), texts.kinds) for draft_len in lens
    }


def _counted(candidate: Candidate, texts: Texts, depth: int) -> Acceptance:
    """Return the engine's own counts, of a drafter whose next draft depends on what became of the last."""
    with open_artifact(candidate.root, candidate.manifest) as artifact:
        requests = [
            artifact.request_of(prompt, len(said)) for prompt, said in zip(texts.prompts, texts.said, strict=True)
        ]
        counts = [_counts(result.stats, depth) for result in artifact.engine.generate(requests)]
    return Acceptance(tuple(counts), texts.kinds)


def _counts(stats: Stats, depth: int) -> Counts:
    reached = (*stats.accepted_by_position, *[0] * depth)[:depth]
    return Counts(stats.steps, stats.drafted, stats.accepted, reached, (stats.draft_steps,) * depth)


def _times(
    candidate: Candidate,
    speculator: Speculator,
    texts: Texts,
    batches: Sequence[int],
    lens: Sequence[int],
    on_progress: OnProgress,
) -> dict[tuple[int, int], float]:
    from trtspec.torch_engine.step_times import step_times

    measured = sorted({0, max(lens), *(each for each in MEASURED_LENS if each in lens)})
    cases = [(batch, draft_len) for batch in batches for draft_len in measured]
    return step_times(
        speculator,
        texts.prompts,
        cases,
        steps=STEPS,
        rounds=ROUNDS,
        max_tokens=PREFILL_TOKENS,
        on_round=lambda done: on_progress(f"{candidate.method}: step times", done + 1, ROUNDS + 1),
    )
