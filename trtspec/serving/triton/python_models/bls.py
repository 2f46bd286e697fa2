# SPDX-License-Identifier: Apache-2.0
"""One text made by models of a server: one guesses the next tokens and another verifies them, or one makes it alone.

A target that drafts by itself, or not at all, is asked once for all of a text. Of one that verifies drafts, which is
TensorRT-LLM's executor, this is relied on (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/,
batch_manager/trtGptModelInflightBatching.cpp@00825c4e, layers/externalDraftTokensLayer.cpp@1d263f15,
kernels/speculativeDecoding/externalDraftTokensKernels.cu@2931b93f):

* A request with draft tokens verifies them all in one step and ends there, with those accepted and one more. A target
  that goes on to as many tokens as it was asked for is as good.
* Every request brings the whole text. The KV cache is reused, as it has to be with draft tokens, so that only what is
  new is computed.
* `draft_logits` say what the tokens were drawn from, which is softmax(draft_logits): temperature, top_k and top_p are
  applied to the target's own logits only. What replaces a rejected token comes from the residual, and the text has
  exactly the target's distribution.
* Without them a draft token has to be the one that the target draws; if it is not, the target draws once more from its
  whole distribution, so that drafted tokens come too often. Greedy text is the target's, sampled text is not.
* An end token is not given back, so a text that ends behind an accepted token cannot be told from one that goes on.

Therefore the draft of a sampled text always brings logits: those it was drawn by (by temperature alone, since what
another program keeps for a top_k or top_p cannot be known to the last token), or those of a point mass where it was
chosen and not drawn. And a request with drafts names no end token; `Endings` finds it in what comes back.

Every request of a text in steps gets a seed of its own, and its draft another one: an engine draws all it needs for a
request from one stream, which it reads from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.circuit_breaker import Breaker
from trtspec.engine.generation.request import SamplingOptions
from trtspec.engine.generation.stopping import Endings
from trtspec.serving.triton.python_models.adaptive_draft_len import Choice, Lengths

Array = npt.NDArray[Any]
NO_ID = -1
ALONE_TOKENS = 32  # that the target gives before drafting is thought of again
NEVER = -1e9  # a logit of no probability; infinities do not pass everywhere


class DraftFailed(TrtspecError):
    """A draft model did not answer, or not in time."""


@dataclass(frozen=True)
class Draft:
    """Tokens guessed, and the logits [tokens, vocab] they were drawn by; None where they were chosen."""

    ids: Sequence[int] = ()
    logits: Array | None = None


@dataclass(frozen=True)
class Call:
    """What one model is asked for once: to go on with a text by `new_tokens`, or to verify a draft.

    With `streams` tokens may come one by one, where both models are decoupled, and with `wants_counts` the answers say
    what the model drafted by itself. `stop_words` are sequences of ids with which a text ends, and `lookahead` the
    window, n-gram and verification set of a model that looks ahead, where they are not its own. `passed` are tensors
    [1, ...] by name that the model gets as they came.
    """

    text: Sequence[int]
    new_tokens: int
    sampling: SamplingOptions
    end_id: int = NO_ID
    draft: Draft = Draft()
    wants_logits: bool = False
    wants_counts: bool = False
    streams: bool = False
    stop_words: Sequence[Sequence[int]] = ()
    lookahead: tuple[int, ...] = ()
    passed: Sequence[tuple[str, Array]] = ()


@dataclass(frozen=True)
class Answer:
    """The next tokens, and what was asked for: the logits they were chosen by [tokens, vocab], and how many tokens the
    model drafted and accepted for them.
    """

    ids: list[int]
    logits: Array | None = None
    drafted: int = 0
    accepted: int = 0


Model = Callable[[Call], Iterable[Answer]]


@dataclass(frozen=True)
class Job:
    """One text to go on with; `endings` say where it ends.

    Where nothing is drafted here (`draft_len` 0), the target is told as much of that as it understands, so that it
    stops by itself: `end_id` and `stop_words`. It gets `lookahead` and `passed` too, and with `streams` it gives tokens
    one by one.
    """

    prompt: Sequence[int]
    max_tokens: int
    draft_len: int
    sampling: SamplingOptions
    endings: Endings
    end_id: int = NO_ID
    stop_words: Sequence[Sequence[int]] = ()
    lookahead: tuple[int, ...] = ()
    streams: bool = False
    passed: Sequence[tuple[str, Array]] = ()


@dataclass(frozen=True)
class Step:
    """What is new: tokens, how many were drafted and accepted for them, and at the end of the text why it ended."""

    ids: list[int]
    drafted: int = 0
    accepted: int = 0
    finish_reason: str | None = None


class Drafter(Protocol):
    """Guesses for one text. What it guesses may depend on the text and on a seed of its own, and on nothing else."""

    def propose(self, text: Sequence[int], position: int, at_most: int) -> Draft | None:
        """Return at most so many tokens behind `text`, of which `position` are output.

        None where the target is to go on alone for a while: several tokens in one call, if it likes.
        """


class ModelDrafter(Drafter):
    """Guesses with a smaller model of the server."""

    def __init__(
        self,
        model: Model,
        sampling: SamplingOptions,
        *,
        draws: bool,
        stop_below: float = 0.0,
        fast_logits: bool = False,
    ) -> None:
        """Tell how it guesses.

        Args:
            model: the draft model.
            sampling: the text's own.
            draws: draw by the text's temperature, where it has one, or choose the most probable token.
            stop_below: the guess ends where the model finds no token this probable.
            fast_logits: the model's logits go to the target on the device, and what comes with its answer tells where
                they are; drawn from them as they are, so at temperature 1.
        """
        self._model = model
        self._draws = (draws or fast_logits) and not sampling.greedy
        temperature = 1.0 if fast_logits else sampling.temperature
        self._sampling = SamplingOptions(temperature if self._draws else 0.0, seed=sampling.seed)
        self._stop_below = stop_below

    def propose(self, text: Sequence[int], position: int, at_most: int) -> Draft:
        sampling = self._sampling.at(position, "draft")
        call = Call(text, at_most, sampling, wants_logits=self._draws or self._stop_below > 0.0)
        answers = list(self._model(call))
        ids = [token for answer in answers for token in answer.ids][:at_most]
        if not ids or not call.wants_logits:
            return Draft(ids)
        logits = next((answer.logits for answer in answers if answer.logits is not None), None)
        if logits is None:
            raise TrtspecError("the draft model gave no logits", hint="build its engine to gather generation logits")
        if self._stop_below:
            ids = ids[: _sure_len(logits, self._stop_below)]
            logits = logits[: len(ids)]
        return Draft(ids, self._drawn_by(logits) if self._draws else None)

    def _drawn_by(self, logits: Array) -> Array:
        temperature = self._sampling.temperature
        return logits if temperature == 1.0 else logits / temperature


class Index(Protocol):
    """Where the last tokens of a growing text stood before."""

    matched: int

    def __len__(self) -> int: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def continuation(self, length: int) -> list[int]: ...


class LookupDrafter(Drafter):
    """Guesses what followed the same words before."""

    def __init__(self, index: Index, min_match: int) -> None:
        self._index = index
        self._min_match = min_match

    def propose(self, text: Sequence[int], position: int, at_most: int) -> Draft:
        index = self._index
        index.extend(text[len(index) :])
        return Draft(index.continuation(at_most) if index.matched >= self._min_match else [])


class GuardedDrafter(Drafter):
    """Drafts as another does while that works and pays; the target goes on alone where it does not."""

    def __init__(
        self,
        drafter: Drafter,
        breaker: Breaker,
        lengths: Lengths | None,
        on_fallback: Callable[[str, TrtspecError | None], None] = lambda reason, error: None,
    ) -> None:
        """Tell what decides.

        Args:
            drafter: raises TrtspecError where it has nothing to say about this text, DraftFailed where it fails.
            breaker: of the model that drafts, for all texts.
            lengths: chooses how much to draft; None: as much as is asked for.
            on_fallback: gets the reason each time that drafting was wanted and the target goes on alone, and what was
                said: "refused" by the draft model, "failed", or "open": it failed before, and is not asked.
        """
        self._drafter, self._breaker, self._lengths, self._on_fallback = drafter, breaker, lengths, on_fallback
        self._refused = False
        self._choice: Choice | None = None
        self._position = 0

    def propose(self, text: Sequence[int], position: int, at_most: int) -> Draft | None:
        if self._refused:
            return None
        if self._lengths and self._choice:
            self._lengths.note(self._choice, position - self._position)
        self._choice, self._position = self._lengths.choose() if self._lengths else None, position
        draft_len = at_most if self._choice is None else self._choice.draft_len
        if draft_len == 0:
            return None
        if not self._breaker.allows():
            self._fall_back("open")
            return None
        try:
            draft = self._drafter.propose(text, position, min(draft_len, at_most))
        except DraftFailed as error:
            self._breaker.failed()
            self._fall_back("failed", error)
            return None
        except TrtspecError as error:
            self._refused = True
            self._breaker.succeeded()
            self._fall_back("refused", error)
            return None
        self._breaker.succeeded()
        if draft_len > at_most:
            self._choice = None  # shorter than it would be, so it says nothing of the length
        return draft

    def _fall_back(self, reason: str, error: TrtspecError | None = None) -> None:
        self._choice = None
        self._on_fallback(reason, error)


def generate(job: Job, target: Model, drafter: Drafter | None, vocab_size: int = 0) -> Generator[Step, None, None]:
    """Yield a text as it comes, the last step with the reason why it ends.

    Args:
        job: the text to go on with.
        target: the model whose text this is.
        drafter: guesses; None where the job's `draft_len` is 0.
        vocab_size: entries of the target's logits, padding included, by which a chosen token is told to be one; 0 for a
            target that verifies tokens without logits exactly.
    """
    output: list[int] = []
    while True:
        remaining = job.max_tokens - len(output)
        at_most = min(job.draft_len, remaining - 1)
        draft = drafter.propose([*job.prompt, *output], len(output), at_most) if drafter and at_most > 0 else Draft()
        call = _call(job, output, draft, remaining, vocab_size)
        given, drafts = 0, draft.ids if draft else ()
        for answer in target(call):
            if not answer.ids and not answer.drafted:
                continue
            drafted, accepted = answer.drafted, answer.accepted
            if drafts and not given:
                drafted, accepted = len(drafts), _accepted(drafts, answer.ids)
            given += len(answer.ids)
            kept, reason = job.endings.cut(output, answer.ids[: job.max_tokens - len(output)])
            output += kept
            if reason is None and len(output) == job.max_tokens:
                reason = "length"
            yield Step(kept, drafted, accepted, reason)
            if reason:
                return
        if given < (1 if drafts else call.new_tokens):
            yield Step([], finish_reason="end_id")
            return


def _call(job: Job, output: Sequence[int], draft: Draft | None, remaining: int, vocab_size: int) -> Call:
    """Return the next call of the target.

    For all of the text where nothing is drafted; for a piece of it where nothing is drafted now; to verify a draft; or
    for one token where none came.
    """
    text, sampling = [*job.prompt, *output], job.sampling.at(len(output), "target")
    if job.draft_len == 0:
        return Call(
            text,
            remaining,
            job.sampling,
            job.end_id,
            wants_counts=True,
            streams=job.streams,
            stop_words=job.stop_words,
            lookahead=job.lookahead,
            passed=job.passed,
        )
    if draft is None:
        piece = min(remaining, ALONE_TOKENS)
        return Call(text, piece, sampling, job.end_id, streams=job.streams, stop_words=job.stop_words)
    if not draft.ids:
        return Call(text, 1, sampling, job.end_id)
    if draft.logits is None and vocab_size and not job.sampling.greedy:
        draft = replace(draft, logits=_point_mass(draft.ids, vocab_size))
    return Call(text, len(draft.ids) + 1, sampling, draft=draft)


def _point_mass(ids: Sequence[int], vocab_size: int) -> Array:
    logits = np.full((len(ids), vocab_size), NEVER, np.float32)
    logits[np.arange(len(ids)), np.asarray(ids)] = 0.0
    return logits


def _accepted(draft: Sequence[int], given: Sequence[int]) -> int:
    """Return how many draft tokens the given ones begin with: what is given for a rejected one is another."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(draft, given, strict=False))
    return sum(1 for _ in same)


def _sure_len(logits: Array, stop_below: float) -> int:
    """Return how many tokens come before the first where no token is probable enough.

    Told by the draft's own distribution and not by the token drawn from it: that would bias the text.
    """
    rows = logits.astype(np.float64)
    best = 1.0 / np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)
    unsure = np.flatnonzero(best < stop_below)
    return int(unsure[0]) if len(unsure) else len(rows)
