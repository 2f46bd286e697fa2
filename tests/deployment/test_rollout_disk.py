# SPDX-License-Identifier: Apache-2.0
"""A disk that is full when a new revision is staged or on trial; a real tritonserver with echo models."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.deployment.test_rollout import BACK_S, LIMITS, Live
from trtspec.bench.gates import GATES
from trtspec.core.errors import DeployError
from trtspec.core.processes import wait_until
from trtspec.deployment.base import promote
from trtspec.deployment.revision import revision_dir
from trtspec.deployment.rollout import commands
from trtspec.deployment.rollout.state import active_rollout
from trtspec.deployment.targets.local import stop
from trtspec.serving.triton.server import find_server

UNJUDGED = [word for gate in GATES for word in ("--skip-gate", gate)]

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 16 MiB."""
    disk = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("needs to be allowed to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True, timeout=60)


@pytest.fixture(scope="module")
def live(disk: Path) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(disk / "state"))
        patch.setattr(
            commands, "rollout_policy", lambda recipe, shares: replace(LIMITS, shares=tuple(shares) or (100,))
        )
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        live = Live(disk)
        live.deploy(live.make())
        yield live
        stop("echo", timeout_s=0)


@contextmanager
def full(disk: Path, left: int = 0) -> Iterator[None]:
    """Leave this many bytes of free space."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    os.truncate(filler, filler.stat().st_size - left)
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize("left", [0, 4096, 16384, 65536])
def test_staging_failure_on_full_disk_leaves_nothing_and_old_revision_serves(
    live: Live, disk: Path, left: int, trtspec: Run
) -> None:
    before, artifact = live.record, live.make()
    noted = live.journal.entries()
    with full(disk, left):
        done = trtspec("deploy", artifact, "--name", "echo", "--detach", "--json", *UNJUDGED)
        assert live.answers()
    assert done.code == 1, done.out
    assert f"no space left on {disk}/state/deployments/echo" in done.document["error"]["message"]
    assert live.record == before
    assert live.answers()
    assert [place.name for place in (live.journal.root / "revisions").iterdir()] == [str(before.revision)]
    assert not [file for file in live.journal.root.iterdir() if file.name.startswith(("rollout.json.", "state.json."))]
    assert live.journal.entries() == noted


def test_rollout_succeeds_once_disk_space_is_available(live: Live, disk: Path) -> None:
    artifact = live.make()
    assert live.deploy(artifact)["rollout"]["state"] == "promoted"
    assert live.record.artifact == str(artifact)
    assert live.answers()


def test_canary_that_dies_on_a_full_disk_is_rolled_back_once_space_is_free(live: Live, disk: Path) -> None:
    before, held = live.record, live.deploy(live.make(), 50)["rollout"]["revision"]
    with full(disk):
        for pid in live.processes(held):
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not live.processes(held), BACK_S)
        assert live.answers()
        with pytest.raises(DeployError, match="no space left"):
            promote("echo")
    assert wait_until(lambda: not active_rollout(live.journal, live.record), BACK_S)
    assert live.states(held)[-1] == "rolled-back"
    assert live.record == before
    assert not revision_dir(live.journal, held).exists()
    assert live.deploy(live.make())["rollout"]["state"] == "promoted"
