# SPDX-License-Identifier: Apache-2.0
"""Which variables of the environment are secrets, so that no server and no model of it gets them."""

from __future__ import annotations

import re
from collections.abc import Mapping

PASS = "TRTSPEC_PASS_ENV"  # names, divided by commas
_NAMES = re.compile(
    r"(^|_)(TOKENS?|KEYS?|APIKEY|SECRETS?|CREDENTIALS?|PASSPHRASE|PASS|PASSWD|AUTH|COOKIES?)(_|$)|PASSWORD"
    r"|^(AWS|AZURE)_",
    re.IGNORECASE,
)
_VALUES = re.compile(r"://[^/@\s]*:[^/@\s]+@")  # an address with a password, as of a proxy or a package index


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what looks like a secret, except for what `TRTSPEC_PASS_ENV` in it names."""
    passed = {name.strip() for name in environment.get(PASS, "").split(",")}
    return {name: value for name, value in environment.items() if name in passed or not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    return name != PASS and bool(_NAMES.search(name) or _VALUES.search(value))
