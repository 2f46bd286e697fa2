# SPDX-License-Identifier: Apache-2.0
"""The end of the raylet of the machine that drives a build, in the middle of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fleet.cluster import RayCluster, ray_environment
from trtspec.core.ports import free_ports
from trtspec.core.processes import wait_until

pytest.importorskip("ray")

MESSAGE = "Ray's raylet on the machine that drives the build has ended"
WAIT_S = 60
DRIVER = """
import sys
from pathlib import Path
from tests.fleet.steps import Work, cell
from trtspec.core.errors import TrtspecError
from trtspec.fleet.pool import PoolOptions, find_pool
from trtspec.fleet.scheduler import Scheduler
from trtspec.planning.pipeline import open_store
kind, address = find_pool(sys.argv[1])
store, log = open_store(), Path(sys.argv[2])
last = Work("last", (Work("first", log=log),), seconds=float(sys.argv[3]), log=log)
try:
    with kind.open(PoolOptions(address)) as pool:
        print(pool._own, flush=True)
        scheduler = Scheduler([cell("c", last)], pool, has=lambda step: bool(store.fetch(step)))
        scheduler.run()
except TrtspecError as error:
    sys.exit(str(error))
print(*(run.status for run in scheduler.steps.values()))
"""


def test_build_ends_with_the_reason_and_resumes(tmp_path: Path) -> None:
    variables = {
        **ray_environment(tmp_path / "without"),
        "TRTSPEC_REMOTE": f"file:{tmp_path / 'team'}",
        "TRTSPEC_CACHE": str(tmp_path / "driver"),
    }
    log = tmp_path / "log"
    environment = {**os.environ, **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), variables["PYTHONPATH"]])

    def drive(seconds: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, f"ray:{cluster.address}", str(log), seconds]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    cluster = RayCluster(variables, free_ports(1)[0])
    try:
        cluster.add(tmp_path / "cache-a", {"zone": "a"})
        build = drive("300")
        try:
            assert build.stdout
            identity = build.stdout.readline().strip()
            assert wait_until(lambda: log.exists() and "first" in log.read_text(), WAIT_S)
            assert wait_until(lambda: bool(list((tmp_path / "cache-a").rglob("tmp/*"))), WAIT_S)  # the next step runs
            cluster.kill_raylet(identity)
            killed = time.monotonic()
            _, messages = build.communicate(timeout=WAIT_S)
        finally:
            build.kill()
            build.wait(10)
        assert time.monotonic() - killed < 30
        assert build.returncode == 1
        assert MESSAGE in messages
        assert "run the same command again: finished steps are cached" in messages
        assert "Traceback" not in messages
        cluster.add(tmp_path / "cache-b", {"zone": "b"})
        again = drive("0")
        found, messages = again.communicate(timeout=2 * WAIT_S)
        assert (again.returncode, found.splitlines()[-1:]) == (0, ["hit built"]), messages
    finally:
        cluster.close()
    assert sorted(line.split()[0] for line in log.read_text().splitlines()) == ["first", "last"]
