# SPDX-License-Identifier: Apache-2.0
"""Removal of secrets from the environment of servers and their models."""

from __future__ import annotations

import re
from collections.abc import Mapping

PASS = "TRTSPEC_PASS_ENV"  # comma-separated names
_NAMES = re.compile(
    r"(^|_)(TOKENS?|KEYS?|APIKEY|SECRETS?|CREDENTIALS?|PASSPHRASE|PASS|PASSWD|AUTH|COOKIES?)(_|$)|PASSWORD"
    r"|^(AWS|AZURE)_",
    re.IGNORECASE,
)
_VALUES = re.compile(r"://[^/@\s]*:[^/@\s]+@")  # a URL with a password, such as a proxy's or package index's


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without likely secrets, except for the variables named in `TRTSPEC_PASS_ENV`."""
    passed = {name.strip() for name in environment.get(PASS, "").split(",")}
    return {name: value for name, value in environment.items() if name in passed or not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    return name != PASS and bool(_NAMES.search(name) or _VALUES.search(value))
