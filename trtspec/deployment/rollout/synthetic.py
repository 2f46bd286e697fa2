# SPDX-License-Identifier: Apache-2.0
"""Synthetic requests that two revisions answer in turns, with the same prompts so that latencies are comparable."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtspec.core.errors import DeployError, TrtspecError
from trtspec.deployment.health.probe import SMOKE_REQUEST
from trtspec.deployment.rollout.analysis import ProbePair
from trtspec.serving.triton.client import Client

ANSWER_S = 10.0  # the texts are short
TOKENS = 16
MAX_UNANSWERED_S = 60.0  # limit without an answered pair


class ProbeFailed(DeployError):
    """The new revision fails a request that the old one answers."""


@dataclass
class PairedProbes:
    """Sends requests for short texts to an old and a new server, given by address."""

    old: str
    new: str
    prompts: Sequence[str]
    found: list[ProbePair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = deque([*self.prompts, str(SMOKE_REQUEST["text_input"])])
        self._asked, self._since = 0, time.monotonic()

    def ask(self) -> None:
        """Send the next request to both servers in alternating order; raise NotAnswered.

        A prompt that both servers fail is dropped; a failure of the old server only is ignored.
        """
        prompt, self._asked = self._left[0], self._asked + 1
        first, second = (self.old, self.new) if self._asked % 2 else (self.new, self.old)
        results = {url: _answer(url, prompt) for url in (first, second)}
        old, new = results[self.old], results[self.new]
        if isinstance(new, TrtspecError):
            if not isinstance(old, TrtspecError):
                raise ProbeFailed(f"a synthetic request failed: {new.message}")
            if len(self._left) > 1:
                self._left.popleft()
        self._left.rotate(-1)
        if not isinstance(old, TrtspecError) and not isinstance(new, TrtspecError):
            self.found.append(ProbePair(old[0], new[0], old[1], new[1]))
            self._since = time.monotonic()
        elif time.monotonic() - self._since > MAX_UNANSWERED_S:
            raise ProbeFailed(f"no synthetic request was answered by both revisions for {MAX_UNANSWERED_S:.0f} s")


def _answer(url: str, prompt: str) -> tuple[float, str] | TrtspecError:
    """Return the seconds and the text of a response, or the error."""
    request = {"text_input": prompt, "max_tokens": TOKENS, "temperature": 0.0, "exclude_input_in_output": True}
    began = time.monotonic()
    try:
        text = str(Client.at(url, ANSWER_S).generate(request).get("text_output"))
    except TrtspecError as error:
        return error
    return time.monotonic() - began, text
