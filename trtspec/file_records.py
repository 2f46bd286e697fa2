# SPDX-License-Identifier: Apache-2.0
"""How a file is recorded in the documents of the store and of artifacts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _relative(path: str) -> str:
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} does not stay inside its directory")
    return path


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FileRecord(BaseModel):
    """A file as it was when it had been written, by its path relative to the directory that is recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, AfterValidator(_relative)]
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256
