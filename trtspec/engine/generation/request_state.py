# SPDX-License-Identifier: Apache-2.0
"""State of a running request: text, random numbers, stop conditions and updates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.grammar import GrammarMatcher
from trtspec.engine.generation.request import EngineRequest, Scores, Stats, Update, add_accepted
from trtspec.engine.generation.text import StopConditions


@dataclass(frozen=True)
class DecodingStep:
    """Result of one row in one pass of the target.

    It has the number of drafted tokens, the accepted tokens and the next token. `scores` are the target's scores of
    these len(accepted) + 1 tokens, if the request asked for any.
    """

    drafted: int
    accepted: list[int]
    token: int
    scores: Scores | None = None


class RequestHandle:
    """Handle of a submitted request, for cancellation from any thread."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Cancel the request; its last update has the finish reason "cancelled"."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()


class RunningRequest:
    """State of a request.

    `text` is the prompt and the output so far, as token ids; `matcher` is its state in the request's grammar.
    """

    def __init__(
        self,
        request: EngineRequest,
        on_update: Callable[[Update], None],
        tokenizer: Tokenizer | None,
        matcher: GrammarMatcher | None = None,
    ) -> None:
        self.request = request
        self.matcher = matcher
        self.on_update = on_update
        self.handle = RequestHandle()
        self.text = list(request.prompt_ids)
        self._tokenizer = tokenizer
        self._shown = len(self.text)
        self._scores: Scores | None = None  # of the tokens that were not sent yet
        self._drafted = self._accepted = self._steps = self._draft_steps = 0
        self._accepted_at: list[int] = []  # by position in the draft
        self._queued_since = time.monotonic()
        self._queue_s: float | None = None
        self._random = np.random.Generator(np.random.Philox(request.sampling.seed)) if self.samples else None
        self._endings = StopConditions(frozenset(request.end_ids), request.stop, tokenizer, request.edits.min_tokens)

    @property
    def samples(self) -> bool:
        return not self.request.sampling.greedy

    @property
    def stats(self) -> Stats:
        prompt = len(self.request.prompt_ids)
        positions = tuple(self._accepted_at)
        new = len(self.text) - prompt
        return Stats(prompt, new, self._drafted, self._accepted, self._steps, positions, self._draft_steps)

    @property
    def external_draft(self) -> tuple[int, ...]:
        """Return the request's external draft, truncated so that it and one more token fit in `max_new_tokens`."""
        return self.request.draft_ids[: self.request.max_new_tokens - 1]

    def draft_len(self, at_most: int) -> int:
        """Return the number of tokens to draft now; the last token of a request is never drafted."""
        limit = at_most if self.request.draft_len is None else min(at_most, self.request.draft_len)
        return max(0, min(limit, self._remaining - 1))

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Return the next `count` random numbers in [0, 1), each from 32 random bits; zeros for a greedy request.

        They depend only on the seed and on this request's history, not on other rows of a batch: they are the stream of
        numpy's Philox(seed), which hashes the seed. The prefill takes one number for each token of the external draft
        and one for the token after it. Every step takes one for each token that the engine could draft, one for each
        that it could verify and one for the next token.
        """
        if self._random is None:
            return np.zeros(count)
        return self._random.integers(0, 1 << 32, count) / float(1 << 32)

    def admit(self) -> None:
        """Record that the engine admitted the request, which ends its waiting time."""
        self._queue_s = time.monotonic() - self._queued_since

    def begin(self, progress: DecodingStep) -> str | None:
        """Add the tokens of the prefill; return the finish reason, or None if the request continues.

        A prefill that verified an external draft is the request's only step.
        """
        verified = progress.drafted > 0
        return self._add(progress, steps=int(verified)) or ("length" if verified else None)

    def advance(self, progress: DecodingStep) -> str | None:
        """Add the tokens of a step; return the finish reason, or None if the request continues."""
        return self._add(progress, steps=1)

    def update(self, finish_reason: str | None, error: str | None = None) -> None:
        """Send the new tokens, holding back those that may end within a character until the character is complete."""
        until = len(self.text)
        if finish_reason is None and self._tokenizer is not None:
            until = self._shown + self._tokenizer.complete_len(self.text[self._shown :])
        if until > self._shown or finish_reason is not None:
            new = tuple(self.text[self._shown : until])
            self._shown = until
            scores = self._scores
            if scores is not None:
                scores, self._scores = scores.part(0, len(new)), scores.part(len(new))
            if finish_reason == "error" and self.matcher is not None:
                error = error or self.matcher.error
            self.on_update(Update(new, finish_reason, self.stats, error, scores, self._queue_s))

    def refuse(self, error: BaseException) -> None:
        """Send the last update of a request that cannot be admitted."""
        refusal = error if isinstance(error, TrtspecError) else None
        reason = "error" if refusal is None else "refused"
        self.on_update(Update((), reason, self.stats, str(error), refusal=refusal))

    @property
    def _remaining(self) -> int:
        return self.request.max_new_tokens - (len(self.text) - len(self.request.prompt_ids))

    def _add(self, progress: DecodingStep, steps: int) -> str | None:
        self._steps += steps
        self._draft_steps += progress.drafted > 0
        self._drafted += progress.drafted
        self._accepted += len(progress.accepted)
        add_accepted(self._accepted_at, len(progress.accepted))
        output = self.text[len(self.request.prompt_ids) :]
        kept, reason = self._endings.cut(output, [*progress.accepted, progress.token][: self._remaining])
        if self.matcher is not None:
            kept, reason = self._constrained(self.matcher, kept, reason)
        self.text += kept
        if progress.scores is not None:
            waiting = progress.scores if self._scores is None else Scores.joined([self._scores, progress.scores])
            self._scores = waiting.part(0, len(self.text) - self._shown)
        return reason or ("length" if self._remaining == 0 else None)

    def _constrained(
        self, matcher: GrammarMatcher, kept: list[int], reason: str | None
    ) -> tuple[list[int], str | None]:
        """Append tokens to the matcher; return those before the end of the grammar, and the finish reason."""
        with matcher.guarded():
            kept = kept[: matcher.advance(kept)]
            if matcher.error is None:
                return kept, reason or ("end_id" if matcher.is_complete else None)
        return [], "error"
