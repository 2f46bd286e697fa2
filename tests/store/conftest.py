# SPDX-License-Identifier: Apache-2.0
"""Fixtures for a store and for child processes that use it and can be killed at a failpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests._support.durability import die_at, finish, start, synced  # noqa: F401
from tests.store.writing import Write
from trtspec.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", clock=lambda: 0.0)


@pytest.fixture
def step(tmp_path: Path) -> Write:
    return Write("abc", tmp_path / "runs")
