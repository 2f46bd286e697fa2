# SPDX-License-Identifier: Apache-2.0
"""What a person who waits is told: a line a minute."""

from __future__ import annotations

import sys
import time

EVERY_S = 60.0


def say(what: str) -> None:
    """Print a line at once, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


class Progress:
    """Says once a minute how much of a part is done and how long the rest will take."""

    def __init__(self, part: str) -> None:
        self._part, self._begun = part, time.monotonic()
        self._said = self._begun
        say(f"{part}: begins")

    def tell(self, done: float, what: str) -> None:
        """Note the share of the work that is done (0 to 1), measured since this was made."""
        now = time.monotonic()
        if now - self._said < EVERY_S or done <= 0:
            return
        self._said = now
        left_s = (now - self._begun) * (1 - done) / done
        say(f"{self._part}: {done:.0%}, {left_s / 60:.1f} minutes left, {what}")
