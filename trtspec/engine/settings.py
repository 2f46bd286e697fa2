# SPDX-License-Identifier: Apache-2.0
"""Settings of a torch engine, passed to a served model as one JSON parameter; importing them loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import TokenLimits
from trtspec.methods.base import find_method

if TYPE_CHECKING:
    from trtspec.recipe.resolve import ResolvedRecipe


# Kinds of rotary scaling with which the torch engine accepts texts longer than the model's original positions. Dynamic
# scaling is excluded: beyond these positions, it changes the rotation of the whole text with its length.
EXTENDED_ROPE_KINDS = frozenset({"linear", "yarn"})


@dataclass(frozen=True)
class EngineSettings:
    """Settings of a torch engine.

    `method`, `draft_len` and the method's `options` configure speculation. `schedule` has pairs (requests, draft_len):
    while at most `requests` run, `draft_len` tokens are drafted; with more than the last pair allows, drafting is off.
    A chain ends where the product of the draft's confidence in its tokens falls below `confidence`. `verify` is the
    acceptance rule of chains: token by token ("standard") or as a "block".

    `max_seq_len` limits prompt plus new tokens of a request, `max_input_len` its prompt alone, `max_num_tokens` the
    tokens of one prefill step and `max_queue_size` the number of waiting requests. `device` is "auto", "cpu" or "cuda";
    `dtype` is "auto", "float32", "bfloat16" or "float16". `kernels` are compiled verification libraries; the first that
    works on this machine is used, otherwise torch. `keeps_texts` enables the prefix cache. `simulated_acceptance`
    forces the acceptance rate of each position (`simulated_acceptance.py`); it is empty in every deployment.
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
    simulated_acceptance: Sequence[float] = ()

    @classmethod
    def from_recipe(cls, recipe: ResolvedRecipe) -> EngineSettings:
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
        """Parse the settings that `as_json` wrote; raise TrtspecError for any other text."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise TrtspecError(f"invalid engine settings: {error}", hint="build the artifact again") from None

    def as_json(self) -> str:
        """Return the settings as JSON, without `kernels`, whose paths depend on the machine, and `keeps_texts`."""
        document = asdict(replace(self, kernels=()))
        del document["kernels"], document["keeps_texts"]
        usual = {
            "schedule": not self.schedule,
            "confidence": not self.confidence,
            "verify": self.verify == "standard",
            "simulated_acceptance": not self.simulated_acceptance,
        }
        for key in (key for key, is_usual in usual.items() if is_usual):
            del document[key]  # the cache keys of build steps contain this text
        return json.dumps(document, sort_keys=True)

    def scheduled(self, rows: int, most: int) -> int:
        """Return the draft length, at most `most`, while `rows` requests run; `most` without a schedule."""
        if not self.schedule:
            return most
        return min(most, next((draft_len for requests, draft_len in self.schedule if rows <= requests), 0))

    @property
    def reuse_tokens(self) -> int:
        """Return the size of the prefix cache in tokens.

        It is 0 for draft heads, because they need the target's hidden states of the whole text, which are not cached.
        """
        reads_hidden = find_method(self.method).drafts_with == "head"
        return self.max_batch_size * self.max_seq_len if self.keeps_texts and not reads_hidden else 0

    @property
    def limits(self) -> TokenLimits:
        return TokenLimits(self.max_seq_len, self.max_input_len)
