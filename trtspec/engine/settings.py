# SPDX-License-Identifier: Apache-2.0
"""The settings of a torch engine, passed to a served model as one JSON parameter. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Limits
from trtspec.methods.base import find_method

if TYPE_CHECKING:
    from trtspec.recipe.resolve import ResolvedRecipe


# Kinds of rotary scaling with which the torch engine takes texts beyond the model's own positions. Dynamic scaling
# changes the positions of a whole text with its length there.
STRETCHES = frozenset({"linear", "yarn"})


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine.

    `method`, `draft_len` and the method's own `options` configure speculation; `schedule` are pairs (requests,
    draft_len): while at most so many requests run, so much is drafted, beyond the last pair nothing. A chain ends
    where the product of how sure the draft is of its tokens falls below `confidence`; `verify` is how one is
    accepted, token by token ("standard") or as a "block". `max_seq_len` bounds prompt plus new tokens of a request,
    `max_input_len` its prompt alone, `max_num_tokens` the tokens of one prefill step, `max_queue_size` the requests
    that wait. `device` is "auto", "cpu" or "cuda", `dtype` "auto", "float32", "bfloat16"
    or "float16". `kernels` are compiled verification libraries; the first that works on this machine is used, or torch
    if none does. With `keeps_texts` what texts that ended began with is not computed again.
    """

    method: str = "none"
    draft_len: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    max_batch_size: int = 8
    max_seq_len: int = 2048
    max_input_len: int | None = None
    max_num_tokens: int = 8192
    max_queue_size: int = 128
    device: str = "auto"
    dtype: str = "auto"
    kernels: tuple[Path, ...] = ()
    schedule: Sequence[tuple[int, int]] = ()
    confidence: float = 0.0
    verify: str = "standard"
    keeps_texts: bool = True

    @classmethod
    def from_recipe(cls, recipe: ResolvedRecipe) -> EngineSettings:
        """Return the settings of a resolved recipe."""
        engine, speculation = recipe.engine, recipe.speculation
        return cls(
            method=speculation.method,
            draft_len=speculation.draft_len,
            options=speculation.options,
            max_batch_size=engine.max_batch_size,
            max_seq_len=engine.max_seq_len,
            max_input_len=engine.max_input_len,
            max_num_tokens=engine.max_num_tokens,
            max_queue_size=recipe.serving.max_queue_size,
            schedule=tuple((each.max_batch, each.draft_len) for each in speculation.schedule),
            confidence=speculation.confidence,
            verify=speculation.verify,
        )

    @classmethod
    def from_json(cls, text: str) -> EngineSettings:
        """Return the settings that `as_json` wrote; TrtspecError for anything else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise TrtspecError(f"no settings of an engine: {error}", hint="build the artifact again") from None

    def as_json(self) -> str:
        """Return everything but the libraries, whose paths differ from machine to machine; a server keeps texts."""
        document = asdict(replace(self, kernels=()))
        del document["kernels"], document["keeps_texts"]
        usual = {"schedule": not self.schedule, "confidence": not self.confidence, "verify": self.verify == "standard"}
        for key in (key for key, is_usual in usual.items() if is_usual):
            del document[key]  # keys of steps are made of this text
        return json.dumps(document, sort_keys=True)

    def scheduled(self, rows: int, most: int) -> int:
        """Return how many tokens in a row are drafted while so many requests run; `most` without a schedule."""
        if not self.schedule:
            return most
        return min(most, next((draft_len for requests, draft_len in self.schedule if rows <= requests), 0))

    @property
    def reuse_tokens(self) -> int:
        """Return how many tokens of ended texts are kept for texts that begin alike.

        None where a head drafts: it reads the target's hidden states of the whole text, which only computing gives.
        """
        reads_hidden = find_method(self.method).drafts_with == "head"
        return self.max_batch_size * self.max_seq_len if self.keeps_texts and not reads_hidden else 0

    @property
    def limits(self) -> Limits:
        """Return how long a request may be."""
        return Limits(self.max_seq_len, self.max_input_len)
