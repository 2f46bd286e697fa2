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
from trtspec.serving.gateway.shared_state import SharedState

VARIABLE = "TRTSPEC_OPENAI_KEYS"
MINUTE = 60.0
ANYBODY = 0  # the holder of all requests without keys


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

    def __init__(
        self,
        limits: GatewayLimits,
        keys: list[str],
        clock: Callable[[], float] = time.monotonic,
        shared: SharedState | None = None,
    ) -> None:
        self._limits, self._clock = limits, clock
        self._keys = [_digest(key) for key in keys]
        self._shared = shared or SharedState(holders=max(1, len(keys)))

    @property
    def texts(self) -> int:
        """Return the number of completions in progress."""
        return self._shared.texts

    def check(self, authorization: str) -> None:
        """Raise ApiError if the API key is invalid or its rate limit is exceeded."""
        holder = self._holder(authorization)
        if self._limits.requests_per_minute:
            self._spend(holder)

    @contextmanager
    def reserve(self, texts: int) -> Iterator[None]:
        """Count `texts` completions as in progress; raises ApiError if they would exceed `max_texts`."""
        with self._shared.locked():
            now = self.texts
            if now + texts > self._limits.max_texts:
                raise overloaded(f"{now} completions are in progress; the limit is {self._limits.max_texts}")
            self._shared.add_texts(texts)
        try:
            yield
        finally:
            with self._shared.locked():
                self._shared.add_texts(-texts)

    def is_busy(self) -> bool:
        """Return True if live requests use at least half of the capacity; mirror traffic then pauses."""
        return 2 * self.texts >= self._limits.max_texts

    def _holder(self, authorization: str) -> int:
        """Compare the request's API key with all keys in constant time; return its place or raise ApiError."""
        if not self._keys:
            return ANYBODY
        given = _digest(authorization.removeprefix("Bearer ").strip())
        matches = [place for place, key in enumerate(self._keys) if hmac.compare_digest(key, given)]
        if not matches:
            raise ApiError(401, "missing or invalid API key; send Authorization: Bearer KEY", code="invalid_api_key")
        return matches[0]

    def _spend(self, holder: int) -> None:
        """Take one request from a key's token bucket, which refills evenly over a minute; raises ApiError if empty."""
        most, now = float(self._limits.requests_per_minute), self._clock()
        with self._shared.locked():
            spent, since = self._shared.bucket(holder)
            spent = max(0.0, spent - (now - since) * most / MINUTE)
            left = most - spent
            if left < 1:
                wait = math.ceil((1 - left) * MINUTE / most)
                message = f"more than {most:.0f} requests per minute"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=wait)
            self._shared.set_bucket(holder, spent + 1, now)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
