# SPDX-License-Identifier: Apache-2.0
"""Who may ask, and how much at once: API keys, a rate for each of them, and the texts that are made together."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.serving.gateway.config import Limits
from trtspec.serving.gateway.errors import ApiError, overloaded

VARIABLE = "TRTSPEC_OPENAI_KEYS"
MINUTE = 60.0
ANYBODY = b""


def load_keys(file: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the API keys: those of the variable, between commas, and those of a file, one a line.

    Raises TrtspecError for a file that others can read, or that has none.
    """
    keys = [key.strip() for key in environment.get(VARIABLE, "").split(",")]
    if file:
        keys += _private_text(Path(file)).splitlines()
    found = [key.strip() for key in keys if key.strip()]
    if file and not found:
        raise TrtspecError("no API key in it", where=file, hint="write one key a line")
    return found


def _private_text(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise TrtspecError("others can read the API keys", where=str(path), hint=f"chmod 600 {path}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TrtspecError(f"cannot be read: {error.strerror}", where=str(path)) from None


class Gate:
    """Lets requests in, or says why not; `clock` returns seconds."""

    def __init__(self, limits: Limits, keys: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._keys = [_digest(key) for key in keys]
        self._spent: dict[bytes, tuple[float, float]] = {}  # of each key: requests left, and when that was
        self.texts = 0

    def check(self, authorization: str) -> None:
        """Raise ApiError for a request without one of the keys, or beyond its key's rate."""
        holder = self._holder(authorization)
        if self._limits.requests_per_minute:
            self._spend(holder)

    @contextmanager
    def making(self, texts: int) -> Iterator[None]:
        """Count texts while they are made; raises ApiError for more than may be made together."""
        if self.texts + texts > self._limits.max_texts:
            raise overloaded(f"{self.texts} texts are being made, at most {self._limits.max_texts} are together")
        self.texts += texts
        try:
            yield
        finally:
            self.texts -= texts

    def is_busy(self) -> bool:
        """Return whether the texts that are made leave no room for what nobody waits for."""
        return 2 * self.texts >= self._limits.max_texts

    def _holder(self, authorization: str) -> bytes:
        """Return whose request it is. Digests are compared, all of them, in a time that says nothing of the keys."""
        if not self._keys:
            return ANYBODY
        given = _digest(authorization.removeprefix("Bearer ").strip())
        matches = [key for key in self._keys if hmac.compare_digest(key, given)]
        if not matches:
            raise ApiError(401, "an API key is needed, as Authorization: Bearer KEY", code="invalid_api_key")
        return matches[0]

    def _spend(self, holder: bytes) -> None:
        """Take one request of those that a key has, which grow evenly to a minute's."""
        most, now = float(self._limits.requests_per_minute), self._clock()
        left, since = self._spent.get(holder, (most, now))
        left = min(most, left + (now - since) * most / MINUTE)
        if left < 1:
            wait = math.ceil((1 - left) * MINUTE / most)
            message = f"more than {most:.0f} requests a minute"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=wait)
        self._spent[holder] = (left - 1, now)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
