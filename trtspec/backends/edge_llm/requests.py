# SPDX-License-Identifier: Apache-2.0
"""One request to Edge-LLM and its answer, as plain values: what is asked, in its words, and the text as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import SamplingOptions, Stats
from trtspec.serving.triton.python_models.tensors import Array


@dataclass(frozen=True)
class Asked:
    """A request: its text, how much is to follow and how; `alone` asks for the target without drafts."""

    text: str
    max_tokens: int
    sampling: SamplingOptions
    stop: tuple[str, ...]
    alone: bool

    @property
    def samples(self) -> bool:
        """Return whether tokens are drawn."""
        return self.sampling.temperature > 0.0 and self.sampling.top_k != 1


@dataclass
class Answer:
    """The text of one request, as far as it has come; `unsent` is what its client has not got yet."""

    stop: tuple[str, ...]
    unsent: str
    text: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    is_complete: bool = False
    finish_reason: str = "length"

    @property
    def stats(self) -> Stats:
        """Return the counts so far; drafts are not told."""
        return Stats(self.prompt_tokens, self.new_tokens)

    def add(self, delta: Any) -> None:
        """Take what was generated; with a stop text the answer is complete, that text its end."""
        begin = len(self.text)
        self.text += delta.text
        self.new_tokens += len(delta.token_ids)
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        if delta.finish_reason == "error":
            raise TrtspecError("Edge-LLM gave the request up", hint="the server's log has more")
        ends = [at + len(stop) for stop in self.stop if (at := self.text.find(stop)) >= 0]
        if ends:
            self.text = self.text[: max(begin, min(ends))]
        self.is_complete = bool(ends) or delta.finished
        if ends or delta.finish_reason == "stop":
            self.finish_reason = "stop" if ends else "end_id"
        self.unsent += self.text[begin:]

    def take(self) -> list[tuple[str, Array]]:
        """Return the tensors of one response; the counts are those of the whole text so far."""
        text, self.unsent = self.unsent, ""
        return [
            ("text_output", np.array([text.encode()], object)),
            ("num_input_tokens", np.array([self.prompt_tokens], np.uint32)),
            ("num_output_tokens", np.array([self.new_tokens], np.uint32)),
        ]


def sampling_params(asked: Asked) -> Any:
    """Return the request in Edge-LLM's words; what samples runs without drafts, which would make it greedy."""
    from experimental.server import SamplingParams

    sampling: dict[str, Any] = {"temperature": 0.0, "top_k": 1, "top_p": 1.0}
    if asked.samples:
        sampling = {key: getattr(asked.sampling, key) for key in ("temperature", "top_k", "top_p", "seed")}
    return SamplingParams(max_tokens=asked.max_tokens, disable_spec_decode=asked.alone or asked.samples, **sampling)
