# SPDX-License-Identifier: Apache-2.0
"""Progress output: one line per minute."""

from __future__ import annotations

import sys
import time

EVERY_S = 60.0


def say(what: str) -> None:
    """Print a line with the time of day, unbuffered."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


class Progress:
    """Prints the completed share of a part and the estimated remaining time once a minute."""

    def __init__(self, part: str) -> None:
        self._part, self._begun = part, time.monotonic()
        self._said = self._begun
        say(f"{part}: begins")

    def tell(self, done: float, what: str) -> None:
        """Report the completed share of the work (0 to 1) since creation."""
        now = time.monotonic()
        if now - self._said < EVERY_S or done <= 0:
            return
        self._said = now
        left_s = (now - self._begun) * (1 - done) / done
        say(f"{self._part}: {done:.0%}, {left_s / 60:.1f} minutes left, {what}")
