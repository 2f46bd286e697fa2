# SPDX-License-Identifier: Apache-2.0
"""Admission control: API keys, a rate limit per key, and a limit on concurrent completions."""

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
from trtspec.serving.gateway.config import GatewayLimits
from trtspec.serving.gateway.errors import ApiError, overloaded

VARIABLE = "TRTSPEC_OPENAI_KEYS"
MINUTE = 60.0
ANYBODY = b""


def load_keys(file: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the API keys in TRTSPEC_OPENAI_KEYS (comma-separated) and in `file` (one per line).

    Raises TrtspecError if the file is unreadable or accessible to other users, or if it is given but no key is found.
    """
    keys = [key.strip() for key in environment.get(VARIABLE, "").split(",")]
    if file:
        keys += _private_text(Path(file)).splitlines()
    found = [key.strip() for key in keys if key.strip()]
    if file and not found:
        raise TrtspecError("the file contains no API key", where=file, hint="write one key per line")
    return found


def _private_text(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise TrtspecError("the API keys are readable by other users", where=str(path), hint=f"chmod 600 {path}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TrtspecError(f"cannot be read: {error.strerror}", where=str(path)) from None


class AdmissionControl:
    """Admits or rejects requests by API key, request rate and concurrency; `clock` returns seconds."""

    def __init__(self, limits: GatewayLimits, keys: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._keys = [_digest(key) for key in keys]
        self._spent: dict[bytes, tuple[float, float]] = {}  # token buckets: requests left, time of the update
        self.texts = 0

    def check(self, authorization: str) -> None:
        """Raise ApiError if the API key is invalid or its rate limit is exceeded."""
        holder = self._holder(authorization)
        if self._limits.requests_per_minute:
            self._spend(holder)

    @contextmanager
    def reserve(self, texts: int) -> Iterator[None]:
        """Count `texts` completions as in progress; raises ApiError if they would exceed `max_texts`."""
        if self.texts + texts > self._limits.max_texts:
            raise overloaded(f"{self.texts} completions are in progress; the limit is {self._limits.max_texts}")
        self.texts += texts
        try:
            yield
        finally:
            self.texts -= texts

    def is_busy(self) -> bool:
        """Return True if live requests use at least half of the capacity; mirror traffic then pauses."""
        return 2 * self.texts >= self._limits.max_texts

    def _holder(self, authorization: str) -> bytes:
        """Compare the request's API key with all keys in constant time; return its digest or raise ApiError."""
        if not self._keys:
            return ANYBODY
        given = _digest(authorization.removeprefix("Bearer ").strip())
        matches = [key for key in self._keys if hmac.compare_digest(key, given)]
        if not matches:
            raise ApiError(401, "missing or invalid API key; send Authorization: Bearer KEY", code="invalid_api_key")
        return matches[0]

    def _spend(self, holder: bytes) -> None:
        """Take one request from a key's token bucket, which refills evenly over a minute; raises ApiError if empty."""
        most, now = float(self._limits.requests_per_minute), self._clock()
        left, since = self._spent.get(holder, (most, now))
        left = min(most, left + (now - since) * most / MINUTE)
        if left < 1:
            wait = math.ceil((1 - left) * MINUTE / most)
            message = f"more than {most:.0f} requests per minute"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=wait)
        self._spent[holder] = (left - 1, now)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
