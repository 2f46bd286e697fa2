# SPDX-License-Identifier: Apache-2.0
"""Write the raw samples of a run as JSON Lines, one line per request, after each round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trtspec.bench.load.arrival import ArrivalProcess
from trtspec.bench.load.rounds import Round
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error


@contextmanager
def samples_file(path: Path | None) -> Iterator[TextIO | None]:
    """Open the file for the duration of the block; raise TrtspecError if that fails."""
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise TrtspecError(
            describe_read_error(error), where=str(path), hint="choose another file for --samples-out"
        ) from None
    with file:
        yield file


def write_samples(file: TextIO, load: ArrivalProcess, number: int, arm: str, done: Round) -> None:
    """Append a round."""
    for place, sample in enumerate(done.samples):
        where = {"load": load.as_dict(), "round": number, "arm": arm, "request": place}
        file.write(json.dumps({**where, **sample.as_dict()}) + "\n")  # ASCII, because servers may send lone surrogates
    file.flush()
