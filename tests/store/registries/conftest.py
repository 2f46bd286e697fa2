# SPDX-License-Identifier: Apache-2.0
"""Registries and artifacts; each test has its own cache and no credentials of the user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.registries.artifacts import make_artifact
from tests.store.registries.double import Registry, running_registry
from tests.store.registries.real import running_docker_registry
from trtspec.store.registries.http_client import Patience

QUICK = Patience(attempts=5, first_pause_s=0.001, longest_pause_s=0.01, read_s=0.5, exchange_s=5, transfer_s=5)
# Real servers are slow under load, and answer 500 for a tag while another client replaces it.
REAL = replace(QUICK, attempts=8, first_pause_s=0.02, longest_pause_s=1, read_s=10, exchange_s=60, transfer_s=60)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a home directory without credentials."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    for name in ("DOCKER_CONFIG", "DOCKER_AUTH_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


@pytest.fixture(scope="module")
def docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a real registry."""
    with running_docker_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return make_artifact(tmp_path / "built")
