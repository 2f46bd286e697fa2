# SPDX-License-Identifier: Apache-2.0
"""The target's logits and log probabilities of the tokens of a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Scores:
    """A row for each of n tokens; fields that the request did not want are None.

    `logits` [n, vocab] are the model's unprocessed logits. `log_probs` [n] are the log probabilities of the tokens by
    the softmax of these logits, as in OpenAI's API and vLLM's `raw_logprobs`: without temperature, top_k, top_p and
    penalties. `top_log_probs` [n, k] are the k highest log probabilities, sorted, of the tokens `top_ids`.
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
        """Concatenate the rows of several scores, which must have the same fields."""
        columns = zip(*(part._rows() for part in parts), strict=True)
        return cls(*(None if column[0] is None else np.concatenate(column) for column in columns))

    def _rows(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]
