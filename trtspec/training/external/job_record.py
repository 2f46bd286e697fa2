# SPDX-License-Identifier: Apache-2.0
"""The record of a job's directory: trainer, method and the prompts that will evaluate the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from trtspec.core.diagnostics import simplify_pydantic_message
from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded
from trtspec.recipe.schema import StrictModel

JOB = "trtspec_job.json"
MOST_BYTES = 1 << 16
Word = Annotated[str, Field(min_length=1, max_length=256)]


class JobRecord(StrictModel):
    """The document of `train --trainer --json`; `held_out` is the digest of the evaluation prompts.

    `rows` and `tokens` count the training data, `left_out` the rows unsuitable for the trainer.
    """

    format_version: Literal[1] = 1
    name: Word
    method: Word
    trainer: Word
    version: Word
    rows: int
    tokens: int
    left_out: int
    held_out: Annotated[str, Field(pattern="[0-9a-f]{64}")]
    warnings: list[str]


def read_job(result: Path) -> tuple[Path, JobRecord]:
    """Return the job's directory at or above `result`, and its record; TrtspecError without a job."""
    path = result.absolute()
    root = next((each for each in (path, *path.parents) if (each / JOB).is_file()), None)
    if root is None:
        hint = "put the draft into the directory that `trtspec train --trainer` wrote"
        raise TrtspecError(f"no {JOB} here or above: the held-out prompts are unknown", where=str(result), hint=hint)
    try:
        return root, JobRecord.model_validate_json(read_bounded(root / JOB, MOST_BYTES))
    except ValidationError as error:
        wrong = error.errors()[0]
        message = (
            f"not written by trtspec: {'.'.join(map(str, wrong['loc']))}: {simplify_pydantic_message(wrong['msg'])}"
        )
        raise TrtspecError(message, where=str(root / JOB), hint="copy it again, or write the job again") from None
