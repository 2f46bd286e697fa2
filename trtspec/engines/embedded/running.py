# SPDX-License-Identifier: Apache-2.0
"""One request while it runs: its text, its random numbers, where it ends, and what may be shown of it already."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.engines.embedded.request import EngineSettings, Request, Stats, Update
from trtspec.errors import TrtspecError

STOP_MARGIN = 8  # tokens before a stop text that the decoder may need to get its beginning right


class Ticket:
    """A submitted request's handle."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask for the request to end; its last update says "cancelled"."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel` was called."""
        return self._cancelled.is_set()


class Running:
    """A request's state; `text` is the prompt and the output so far."""

    def __init__(self, request: Request, on_update: Callable[[Update], None], tokenizer: Tokenizer | None) -> None:
        self.request = request
        self.on_update = on_update
        self.ticket = Ticket()
        self.text = list(request.prompt_ids)
        self._tokenizer = tokenizer
        self._shown = len(self.text)
        self._drafted = self._accepted = self._steps = 0
        self._random = np.random.Generator(np.random.Philox(request.sampling.seed)) if self.samples else None
        self._end_ids = frozenset(request.end_ids)

    @property
    def samples(self) -> bool:
        """Return whether tokens are drawn rather than chosen."""
        return self.request.sampling.temperature > 0.0 and self.request.sampling.top_k != 1

    @property
    def stats(self) -> Stats:
        """Return the counts so far."""
        prompt = len(self.request.prompt_ids)
        return Stats(prompt, len(self.text) - prompt, self._drafted, self._accepted, self._steps)

    def draft_len(self, at_most: int) -> int:
        """Return how many tokens to draft now: the last token of a request is never worth drafting past."""
        wanted = at_most if self.request.draft_len is None else min(at_most, self.request.draft_len)
        return max(0, min(wanted, self._remaining - 1))

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Return the next `count` numbers in [0, 1) of 32 bits.

        They depend on the seed and on this request's own history alone, so neighbours in a batch change nothing.
        """
        if self._random is None:
            return np.zeros(count)
        return self._random.integers(0, 1 << 32, count) / float(1 << 32)

    def begin(self, token: int) -> str | None:
        """Take the token after the prompt; returns the finish reason if it ends the request."""
        return self._extend([token])

    def advance(self, drafted: int, accepted: list[int], token: int) -> str | None:
        """Take a step's accepted drafts, of so many drafted, and its next token; returns the finish reason, if any."""
        self._steps += 1
        self._drafted += drafted
        self._accepted += len(accepted)
        return self._extend([*accepted, token])

    def update(self, finish_reason: str | None, error: str | None = None) -> None:
        """Hand over what can be shown since the last time; held back is only what may be half a character."""
        until = len(self.text)
        if finish_reason is None and self._tokenizer is not None:
            until = self._shown + self._tokenizer.complete_len(self.text[self._shown :])
        if until > self._shown or finish_reason is not None:
            new = tuple(self.text[self._shown : until])
            self._shown = until
            self.on_update(Update(new, finish_reason, self.stats, error))

    @property
    def _remaining(self) -> int:
        return self.request.max_new_tokens - (len(self.text) - len(self.request.prompt_ids))

    def _extend(self, new: list[int]) -> str | None:
        reason = None
        new = new[: self._remaining]
        for position, token in enumerate(new):
            if token in self._end_ids:
                new, reason = new[:position], "end_id"
                break
        before = len(self.text)
        self.text += new
        if self.request.stop and (end := self._stop(before)):
            del self.text[end:]
            return "stop"
        if reason is None and self._remaining == 0:
            reason = "length"
        return reason

    def _stop(self, before: int) -> int | None:
        """Return the length of the text at which a stop text was first complete, given what is new since `before`."""
        if self._tokenizer is None:
            raise ValueError("stop texts need a tokenizer")
        reach = max(len(stop.encode()) for stop in self.request.stop) + STOP_MARGIN
        start = max(len(self.request.prompt_ids), before - reach)
        for end in range(before + 1, len(self.text) + 1):
            shown = self._tokenizer.decode(self.text[start:end])
            if any(stop in shown for stop in self.request.stop):
                return end
        return None


def check_request(request: Request, settings: EngineSettings, vocab_size: int, has_tokenizer: bool) -> None:
    """Raise TrtspecError for a request the engine cannot serve, with the number that is wrong."""
    sampling, prompt = request.sampling, request.prompt_ids
    total = len(prompt) + request.max_new_tokens
    complaints = {
        "the prompt is empty": not prompt,
        f"max_tokens is {request.max_new_tokens}, expected at least 1": request.max_new_tokens < 1,
        f"the prompt has a token id outside 0..{vocab_size - 1}": any(not 0 <= token < vocab_size for token in prompt),
        f"the prompt has {len(prompt)} tokens, at most {settings.max_input_len} are taken (engine.max_input_len)": (
            settings.max_input_len is not None and len(prompt) > settings.max_input_len
        ),
        f"prompt and max_tokens are {total} tokens together, at most {settings.max_seq_len} fit (engine.max_seq_len)": (
            total > settings.max_seq_len
        ),
        f"temperature is {sampling.temperature}, expected 0 or more": (
            not math.isfinite(sampling.temperature) or sampling.temperature < 0
        ),
        f"top_k is {sampling.top_k}, expected 0 (all) or more": sampling.top_k < 0,
        f"top_p is {sampling.top_p}, expected more than 0 and at most 1": not 0 < sampling.top_p <= 1,
        f"seed is {sampling.seed}, expected 0 to 2^64 - 1": not 0 <= sampling.seed < 1 << 64,
        f"the draft length is {request.draft_len}, expected 0 or more": (request.draft_len or 0) < 0,
        "a stop text is empty": any(not stop for stop in request.stop),
        "stop texts need the engine to have a tokenizer": bool(request.stop) and not has_tokenizer,
    }
    for complaint, holds in complaints.items():
        if holds:
            raise TrtspecError(complaint)
