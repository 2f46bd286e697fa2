# SPDX-License-Identifier: Apache-2.0
"""Schema of saved load benchmarks, as needed for comparison; files are untrusted and limited in size before parsing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from trtspec.bench.load.arrival import LARGER_IS_BETTER
from trtspec.checkpoints.safe_json import parse_object, repr_short
from trtspec.core.diagnostics import simplify_pydantic_message
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded

MAX_BYTES, MAX_VALUES = 32 << 20, 2_000_000
HINT = "save one with: trtspec bench NAME --concurrency 1,4 --json > FILE.json"

Positive = Annotated[float, Field(gt=0, lt=1e12)]
Count = Annotated[int, Field(ge=0, lt=10**12)]
Text = Annotated[str, Field(max_length=4000)]


class SavedRound(BaseModel):
    """One round of one arm; its metrics are None without responses."""

    requests: Count
    failed: Count
    output_tokens_per_s: Positive | None = None
    mean_e2e_ms: Positive | None = None


class SavedArm(BaseModel):
    """An arm's rounds at one load."""

    rounds: Annotated[list[SavedRound], Field(min_length=1, max_length=100_000)]

    @property
    def failed_share(self) -> float:
        """Return the share of failed requests."""
        failed = sum(each.failed for each in self.rounds)
        return failed / max(1, failed + sum(each.requests for each in self.rounds))

    def values(self, judged_by: str) -> list[float | None]:
        """Return the metric `judged_by` of each round, None for a round without responses."""
        return [getattr(each, judged_by) for each in self.rounds]


class SavedPoint(BaseModel):
    """One load."""

    load: dict[Text, float | Text]
    requests_per_round: Count
    judged_by: Literal["output_tokens_per_s", "mean_e2e_ms"]
    arms: dict[Text, SavedArm]

    def speedups(self) -> list[float | None]:
        """Return each round's speed-up, None if unknown."""
        served, alone = self.arms.get("served"), self.arms.get("baseline")
        if served is None or alone is None:
            return []
        pairs = zip(served.values(self.judged_by), alone.values(self.judged_by), strict=False)
        if LARGER_IS_BETTER[self.judged_by]:
            return [ours / theirs if ours and theirs else None for ours, theirs in pairs]
        return [theirs / ours if ours and theirs else None for ours, theirs in pairs]


class SavedWorkload(BaseModel):
    """The workload's identity."""

    sha256: Text
    source: Text
    max_tokens: Count


class SavedNoise(BaseModel):
    """The time of the fixed work."""

    median_work_ms: Positive


class SavedLoad(BaseModel):
    """The document."""

    format_version: Literal[1]
    kind: Literal["load"]
    driver: Text
    workload: SavedWorkload
    noise: SavedNoise
    points: Annotated[list[SavedPoint], Field(min_length=1, max_length=1000)]


def read_saved(path: Path) -> SavedLoad:
    """Return a saved document; raise TrtspecError if the file is invalid."""
    values: Any
    try:
        values = parse_object(read_bounded(path, MAX_BYTES), MAX_VALUES)
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path), hint=HINT) from None
    except ValueError as error:
        raise TrtspecError(str(error), where=str(path), hint=HINT) from None
    if values.get("kind") != "load":
        raise TrtspecError("not a document of a load benchmark", where=str(path), hint=HINT)
    try:
        return SavedLoad.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = repr_short(".".join(map(str, first["loc"])))
        raise TrtspecError(f"{where}: {simplify_pydantic_message(first['msg'])}", where=str(path), hint=HINT) from None
