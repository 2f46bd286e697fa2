# SPDX-License-Identifier: Apache-2.0
"""Builds of cells on a remote pool of simulated nodes, whose store is not the driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.scripted import ScriptedPool
from trtspec.backends.common import steps
from trtspec.fleet.labels import Node
from trtspec.fleet.pool import Pool, PoolKind, PoolOptions
from trtspec.fleet.scheduler import UnobservedFleet
from trtspec.planning import cells
from trtspec.planning.cells import Events, FleetRequest, FleetResult, build_cells
from trtspec.planning.pipeline import open_store
from trtspec.recipe.load import load_matrix
from trtspec.store.store import Store
from trtspec.store.team.client import TeamStore
from trtspec.store.team.environment import open_remote

RECIPE = "extends: quickstart\nname: m\nmatrix: {speculation.draft_len: [2, 3]}\n"


@pytest.fixture
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ScriptedPool]:
    """Make `--on` open a pool of one simulated node with its own store; return the pools that were opened."""
    opened: list[ScriptedPool] = []

    def open_pool(options: PoolOptions) -> Pool:
        node_store = Store(tmp_path / "node", remote=open_remote())
        opened.append(ScriptedPool([Node("node", {}, 1)], node_store))
        return opened[-1]

    monkeypatch.setattr(cells, "find_pool", lambda on: (PoolKind("simulated", open_pool, is_remote=True), ""))
    monkeypatch.setenv("TRTSPEC_REMOTE", f"file:{tmp_path / 'team'}")
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "driver"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(RECIPE)
    return opened


def build() -> FleetResult:
    return build_cells(FleetRequest(load_matrix(Path("m.yaml")), "simulated"), open_store(), Events(UnobservedFleet()))


def statuses(found: FleetResult) -> dict[str, tuple[str, int, str]]:
    return {run.step.name: (run.status, run.builds, run.node) for run in found.steps.values()}


def test_build_without_a_step_to_run_opens_no_pool(pools: list[ScriptedPool], monkeypatch: pytest.MonkeyPatch) -> None:
    assert [cell.status for cell in build().cells] == ["published", "published"]
    assert len(pools) == 1
    assert [cell.status for cell in build().cells] == ["unchanged", "unchanged"]
    monkeypatch.setenv("TRTSPEC_CACHE", "another-driver")
    found = build()
    assert [cell.status for cell in found.cells] == ["unchanged", "unchanged"]
    assert {run.status for run in found.steps.values()} == {"hit"}
    assert len(pools) == 1


def test_copies_that_no_team_store_gets_are_made_where_they_are_needed(
    pools: list[ScriptedPool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(steps, "MAX_SHARED_COPY_BYTES", 100)
    found = build()
    assert [cell.status for cell in found.cells] == ["published", "published"]
    assert statuses(found)["copy-tokenizer"] == ("built", 1, "this machine")
    assert statuses(found)["convert-target"] == ("built", 1, "node")
    copies = {key for key, run in found.steps.items() if run.step.name.startswith("copy-")}
    assert not TeamStore(f"file:{tmp_path / 'team'}").find(copies)
