# SPDX-License-Identifier: Apache-2.0
"""A store, and other processes that use it and may be killed at a named point."""

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
