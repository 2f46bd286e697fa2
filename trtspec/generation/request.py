# SPDX-License-Identifier: Apache-2.0
"""What a client asks for and what it gets, whichever engine serves it: plain values, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Limits:
    """How long a request may be in tokens: its prompt alone, None for no limit, and prompt and answer together."""

    max_seq_len: int
    max_input_len: int | None = None


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy, top_k 0 and top_p 1 leave the distribution whole.

    All numbers that a request draws by are one stream, which depends on `seed` alone and which every request reads from
    its beginning (see `Running.uniforms`). Whoever makes one text by several requests has to give each of them another
    seed, and what drafts another than what verifies, or the text loses the target's law. Seeds are hashed, so
    neighbouring ones have nothing in common.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One text to go on with.

    Generation ends after `max_new_tokens`, before one of `end_ids`, or with the token that completes a `stop` text.
    `draft_len` lowers the engine's draft length for this request; 0 is the target alone. `options` lower sizes of the
    engine's method, as far as its drafter lets requests do so.

    `draft_ids` are guesses at the first new tokens; what `max_new_tokens` leaves no place for is cut off. They are
    verified together with the prompt, whatever the engine's own method is, and there the request ends: with those
    accepted and one token more, as in TensorRT-LLM's executor. Its finish reason is "length" unless the text ended.
    `draft_logits` [len(draft_ids), vocab] tell what each was drawn from, which is softmax(draft_logits): temperature,
    top_k and top_p are the target's alone. Then the text has the target's law and more of the draft is accepted.
    Without them a guess has to be what the target itself draws.

    `return_logits` asks for the target's logits of every new token, as they are before temperature, top_k and top_p.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    end_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    draft_len: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)
    draft_ids: tuple[int, ...] = ()
    draft_logits: Logits | None = field(default=None, compare=False)
    return_logits: bool = False


@dataclass(frozen=True)
class Stats:
    """What a request cost so far.

    `steps` counts the target's decode steps; the prefill is one where it verified a draft that came with the request.
    `drafted` counts every token that was verified, all nodes of a tree among them.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    def __add__(self, other: Stats) -> Stats:
        """Return the counts of two requests together."""
        return Stats(*(mine + yours for mine, yours in zip(astuple(self), astuple(other), strict=True)))

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_len(self) -> float:
        """Return the tokens a decode step gave on average: accepted drafts and the target's own; 1 without drafts."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0


@dataclass(frozen=True)
class Update:
    """News of a request: the ids since the last update, and at its end the reason.

    `finish_reason` is None while it runs, then "length", "end_id", "stop", "cancelled" or "error" (with `error`).
    `logits` [len(new_ids), vocab] are there where the request asked for them and came to run.
    """

    new_ids: tuple[int, ...]
    finish_reason: str | None
    stats: Stats
    error: str | None = None
    logits: Logits | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Result:
    """A finished request; `logits` [len(ids), vocab] where it asked for them."""

    ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    logits: Logits | None = field(default=None, compare=False)
