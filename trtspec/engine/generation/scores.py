# SPDX-License-Identifier: Apache-2.0
"""What the target says of each token of a text, beside the token itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Scores:
    """A row for each of n tokens; None is what the request did not ask for.

    `logits` [n, vocab] are the model's own, before anything is done to them. `log_probs` [n] are its log probabilities
    of the tokens, by the softmax of those logits, as OpenAI means them and vLLM's `raw_logprobs`: neither temperature,
    top_k and top_p nor penalties are in them. `top_log_probs` [n, k] are the k highest, those of `top_ids`, sorted.
    """

    logits: npt.NDArray[np.float32] | None = None
    log_probs: npt.NDArray[np.float32] | None = None
    top_log_probs: npt.NDArray[np.float32] | None = None
    top_ids: npt.NDArray[np.int32] | None = None

    def part(self, start: int, end: int | None = None) -> Scores:
        """Return the rows of tokens `start` to `end`."""
        return Scores(*(None if rows is None else rows[start:end] for rows in self._rows()))

    @classmethod
    def joined(cls, parts: Iterable[Scores]) -> Scores:
        """Return the rows of several, of which all have the same."""
        columns = zip(*(part._rows() for part in parts), strict=True)
        return cls(*(None if column[0] is None else np.concatenate(column) for column in columns))

    def _rows(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]
