# SPDX-License-Identifier: Apache-2.0
"""Parse sizes and durations of options."""

from __future__ import annotations

import re

from trtspec.core.errors import TrtspecError

PREFIXES = " KMGT"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_bytes(text: str, option: str) -> int:
    """Return the bytes of a size such as 200GB or 1.5TiB."""
    if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE):
        number, prefix, binary = match.groups()
        return int(float(number) * (1024 if binary else 1000) ** (PREFIXES.index(prefix.upper() or " ")))
    raise TrtspecError(f"{option}: {text!r} is not a size", hint="e.g. 200GB or 500GiB")


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds of a duration such as 30d or 12h."""
    if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([smhdw])", text.strip()):
        return float(match[1]) * SECONDS[match[2]]
    raise TrtspecError(f"{option}: {text!r} is not a duration", hint="e.g. 30d, 12h or 2w")
