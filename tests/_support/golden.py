# SPDX-License-Identifier: Apache-2.0
"""`--update-screens`: rewrite golden screens, to be reviewed by a person."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-screens", action="store_true", help="write the golden screens of commands anew")
