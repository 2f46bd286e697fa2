# SPDX-License-Identifier: Apache-2.0
"""Records of files in the documents of the store and of artifacts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_PATH_BYTES, MAX_NAME_BYTES = 2048, 255  # limits of Linux file systems, less a margin for the parent directory


def _relative(path: str) -> str:
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{_quote_path(path)} does not stay inside its directory")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_quote_path(path)} is not valid UTF-8") from None
    if len(encoded) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in encoded.split(b"/")):
        raise ValueError(f"{_quote_path(path)} exceeds the path length limit of file systems")
    return path


def _quote_path(path: str) -> str:
    return ascii(path if len(path) <= 80 else f"{path[:80]}...")


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FileRecord(BaseModel):
    """Size and digest of a file when it was written; `path` is relative to the recorded directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, AfterValidator(_relative)]
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256
