# SPDX-License-Identifier: Apache-2.0
"""Machines, each with its own store, that share a team store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests._support.durability import die_at, finish, start  # noqa: F401
from tests.store.registries.conftest import QUICK, REAL, docker_registry, own_home, registry  # noqa: F401
from tests.store.writing import Write
from trtspec.store.registries.http_client import Patience
from trtspec.store.store import Store
from trtspec.store.team.client import TeamStore


class Machines:
    """Opens stores that share a team store at `address`."""

    def __init__(self, folder: Path, address: str, patience: Patience = QUICK) -> None:
        self.folder, self.address, self.patience = folder, address, patience

    def store(self, name: str, mode: str = "read-write", address: str = "") -> Store:
        return Store(self.folder / name, remote=TeamStore(address or self.address, mode, self.patience))

    def step(self, text: str = "abc") -> Write:
        return Write(text, self.folder / f"runs-{text}")


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path, f"file:{tmp_path}/team")
