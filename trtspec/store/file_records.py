# SPDX-License-Identifier: Apache-2.0
"""Pydantic model of a file's path, size and digests, as recorded in the documents of the store and of artifacts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from trtspec.core.hashing import Segments, combine_segments, segment_count, segment_ranges

MAX_PATH_BYTES, MAX_NAME_BYTES = 2048, 255  # Linux's limits; for paths, with a margin for the parent directory


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
Blake3 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
RelativePath = Annotated[str, AfterValidator(_relative)]  # stays inside its directory; UTF-8, within Linux's limits
SHOWN_SEGMENTS = 3


class FileRecord(BaseModel):
    """Size and segment digests (core/hashing.py) of a file; `path` is relative to the described directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: RelativePath
    size: Annotated[int, Field(ge=0)]
    segments: tuple[Blake3, ...]

    @model_validator(mode="after")
    def _is_complete(self) -> FileRecord:
        if len(self.segments) != (count := segment_count(self.size)):
            raise ValueError(f"{len(self.segments)} segments are recorded; a file of {self.size:,} bytes has {count}")
        return self

    @property
    def digest(self) -> str:
        """Return the BLAKE3 digest of the whole file, in hex."""
        return combine_segments(self.segments, self.size)

    def difference(self, segments: Segments) -> str | None:
        """Return a description of the byte ranges whose digests differ from `segments`, or None if all are equal.

        The compared file must have the recorded size.
        """
        ranges = zip(segment_ranges(self.size), self.segments, segments, strict=True)
        differing = [f"{begin:,} to {end - 1:,}" for (begin, end), recorded, found in ranges if found != recorded]
        if not differing:
            return None
        more = f" and {len(differing) - SHOWN_SEGMENTS:,} more segments" if len(differing) > SHOWN_SEGMENTS else ""
        return f"bytes {', '.join(differing[:SHOWN_SEGMENTS])}{more} differ"
