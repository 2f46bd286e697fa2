# SPDX-License-Identifier: Apache-2.0
"""`--update-screens`: golden screens are written anew, and are then for people to look at."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-screens", action="store_true", help="write the golden screens of commands anew")
