# SPDX-License-Identifier: Apache-2.0
"""The raw samples of a run: a file of JSON, a line for each request, written as rounds end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trtspec.bench.load.arrival import Load
from trtspec.bench.load.rounds import Round
from trtspec.core.errors import TrtspecError
from trtspec.core.files import unreadable


@contextmanager
def samples_file(path: Path | None) -> Iterator[TextIO | None]:
    """Open the file while the block runs; raises TrtspecError where that cannot be."""
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise TrtspecError(unreadable(error), where=str(path), hint="give --samples another file") from None
    with file:
        yield file


def write_samples(file: TextIO, load: Load, number: int, arm: str, done: Round) -> None:
    """Write a round."""
    for place, sample in enumerate(done.samples):
        where = {"load": load.as_dict(), "round": number, "arm": arm, "request": place}
        file.write(json.dumps({**where, **sample.as_dict()}) + "\n")  # ASCII: servers say what UTF-8 cannot
    file.flush()
