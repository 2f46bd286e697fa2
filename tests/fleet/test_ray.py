# SPDX-License-Identifier: Apache-2.0
"""Builds on a real Ray cluster: nodes with made-up labels and separate stores, which share a team store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fleet.cluster import LOOPBACK, RayCluster, ray_environment, variables_set
from tests.fleet.steps import Work, cell
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import find_gpu
from trtspec.core.paths import store_dir
from trtspec.core.ports import free_ports
from trtspec.core.processes import wait_until
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import Pool, PoolOptions, find_pool
from trtspec.fleet.scheduler import Cell, Limits, Scheduler
from trtspec.store.artifact_paths import ATTESTATIONS
from trtspec.store.entry import StoreEntry
from trtspec.store.store import Store
from trtspec.store.team.client import TeamStore

pytest.importorskip("ray")

COMMAND_S = 150
NODE_A, NODE_B = {"zone": "a", "gpu": "h100"}, {"zone": "b"}
RECIPE = """
extends: quickstart
name: m
matrix:
  include:
    - {speculation.draft_len: 2, fleet.labels: {zone: a}}
    - {speculation.draft_len: 3, fleet.labels: {zone: b}}
    - {speculation.draft_len: 4, fleet.labels: {zone: nowhere}}
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def cluster(base: Path) -> Iterator[RayCluster]:
    variables = {**ray_environment(base / "without"), "TRTSPEC_REMOTE": f"file:{base / 'team'}"}
    started = RayCluster(variables, free_ports(1)[0])
    try:
        started.add(base / "cache-a", NODE_A)
        started.add(base / "cache-b", NODE_B)
        yield started
    finally:
        started.close()


def trtspec_on(cluster: RayCluster, on: str, base: Path, name: str) -> tuple[int, dict, str]:  # type: ignore[type-arg]
    """Build RECIPE with the driver's own store and directory; return exit code, document and messages."""
    here = base / name
    here.mkdir()
    (here / "m.yaml").write_text(RECIPE)
    variables = {**os.environ, **cluster.variables, "TRTSPEC_CACHE": str(here / "cache")}
    command = [sys.executable, "-m", "trtspec", "build", "m.yaml", "--on", on, "--json"]
    done = subprocess.run(
        command, cwd=here, env=variables, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files of all artifacts in a directory, without the provenance, which has the times of a build."""
    paths = [path for path in directory.rglob("*") if path.is_file() and ATTESTATIONS not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_matrix_is_built_where_labels_fit_and_equals_a_local_build(cluster: RayCluster, base: Path) -> None:
    code, document, messages = trtspec_on(cluster, f"ray:{cluster.address}", base, "direct")
    a, b, nowhere = document["recipes"]
    assert (code, a["status"], b["status"], nowhere["status"]) == (1, "published", "published", "unplaceable")
    emitted = [each["steps"][-1]["node"] for each in (a, b)]
    assert len({*emitted}) == 2
    assert "it requires zone=nowhere; " in nowhere["error"]["message"]
    assert "(gpu=h100, zone=a) lacks zone=nowhere" in nowhere["error"]["message"]
    assert f"error: m.yaml:3: {nowhere['name']}: no node can run emit-repository" in messages
    assert {each["builds"] for each in document["keys"] if each["status"] == "built"} == {1}
    local = base / "local"
    local.mkdir()
    (local / "m.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "trtspec", "build", "m.yaml", "--variant", a["name"], "--variant", b["name"]]
    variables = {**os.environ, "TRTSPEC_CACHE": str(local / "cache")}
    subprocess.run(command, cwd=local, env=variables, timeout=COMMAND_S, check=True, capture_output=True)
    assert contents(base / "direct" / "build") == contents(local / "build")
    # Another machine without a store, through the client's port: everything comes from the team store.
    code, document, _ = trtspec_on(cluster, f"ray://{LOOPBACK}:{cluster.client_port}", base, "client")
    assert [each["status"] for each in document["recipes"]] == ["published", "published", "unplaceable"]
    assert sum(each["builds"] for each in document["keys"]) == 0
    assert contents(base / "client" / "build") == contents(local / "build")


@pytest.fixture
def pool(cluster: RayCluster, base: Path) -> Iterator[Pool]:
    variables = {**cluster.variables, "TRTSPEC_CACHE": str(base / "driver")}
    with variables_set(variables):
        kind, address = find_pool(f"ray:{cluster.address}")
        with kind.open(PoolOptions(address)) as opened:
            yield opened


def test_function_is_called_on_each_node_that_fits(base: Path, pool: Pool) -> None:
    assert {path.parent for path in pool.call(store_dir, Requirement()).values()} == {
        base / "cache-a",
        base / "cache-b",
    }
    assert [path.parent for path in pool.call(store_dir, Requirement((("zone", "b"),))).values()] == [base / "cache-b"]
    assert pool.call(store_dir, Requirement((("zone", "c"),))) == {}
    with pytest.raises(TrtspecError, match="unknown GPU 'b2000'"):
        pool.call(partial(find_gpu, "b2000"), Requirement())


def test_recipes_are_benchmarked_on_whole_nodes(cluster: RayCluster, base: Path) -> None:
    here = base / "bench"
    here.mkdir()
    (here / "m.yaml").write_text(RECIPE)
    variables = {**os.environ, **cluster.variables, "TRTSPEC_CACHE": str(here / "cache")}
    on = ("--on", f"ray:{cluster.address}")
    command = [sys.executable, "-m", "trtspec", "bench", "m.yaml", *on, "--max-tokens", "8", "--runs", "1", "--json"]
    done = subprocess.run(
        command, cwd=here, env=variables, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    a, b, nowhere = json.loads(done.stdout)["recipes"]
    assert (done.returncode, nowhere["status"]) == (1, "unplaceable"), done.stderr
    assert {a["status"], b["status"]} == {"measured"}
    assert a["node"] != b["node"]
    assert a["document"]["speedup"] > 0
    assert b["document"]["identical_texts"] == b["document"]["prompts"]


def on_zone(name: str, *steps: Work, zone: str = "") -> Cell:
    return cell(name, *steps, requirement=Requirement((("zone", zone),)) if zone else None)


def test_lost_node_error_and_bug_on_a_cluster(cluster: RayCluster, base: Path, pool: Pool) -> None:
    extra = cluster.add(base / "cache-c", {"zone": "c"})
    log = base / "log"
    slow = [Work(f"slow{number}", seconds=4.0, log=log) for number in range(4)]
    cells = [
        *(on_zone(f"slow{number}", step) for number, step in enumerate(slow)),
        on_zone("error", Work("bad", (Work("common", log=log),), fault="error")),
        on_zone("bug", Work("worse", (Work("common", log=log),), fault="bug")),
        on_zone("killed", Work("once", log=log, fault="kill-once")),
        on_zone("only-c", Work("here", seconds=30.0, log=log), zone="c"),
    ]
    scheduler = Scheduler(cells, pool, limits=Limits(attempts=4))

    class Killer:
        """Kills the node of zone c when a step runs there."""

        done = False

        def changed(self, cells: object, steps: object) -> None:
            if not self.done and scheduler.steps[cells_by_name["only-c"].steps[0].key].state == "running":
                self.done = True
                cluster.kill(extra)

        def advanced(self, run: object, n_bytes: int) -> None: ...
        def message(self, run: object, text: str) -> None: ...
        def step_finished(self, run: object) -> None: ...
        def cell_finished(self, run: object) -> None: ...

    cells_by_name = {each.name: each for each in cells}
    scheduler._observer = Killer()
    scheduler.run()
    runs = {run.cell.name: run for run in scheduler.cells}
    assert [runs[f"slow{number}"].status for number in range(4)] == ["built"] * 4
    assert [runs[name].status for name in ("error", "bug", "killed")] == ["failed", "failed", "built"]
    assert runs["error"].failure
    assert (runs["error"].failure.message, runs["error"].failure.where) == ("the tool failed", "tool.log")
    assert runs["bug"].failure
    assert "ZeroDivisionError: a bug of the step" in runs["bug"].failure.message
    lost = runs["only-c"]
    assert lost.status == "unplaceable", lost.failure
    assert lost.failure
    assert "it requires zone=c" in lost.failure.message
    built = [line.split()[0] for line in log.read_text().splitlines()]
    assert sorted(built) == sorted({*built})
    assert scheduler.steps[cells[6].steps[0].key].losses == 1


def entries(base: Path) -> list[StoreEntry]:
    """Return the entries of the stores of both nodes."""
    return [entry for name in ("cache-a", "cache-b") for entry in Store(base / name / "store").entries()]


DRIVER = """
import sys
from pathlib import Path
from tests.fleet.steps import Work, cell
from trtspec.fleet.pool import PoolOptions, find_pool
from trtspec.fleet.scheduler import Scheduler
from trtspec.planning.pipeline import open_store
kind, address = find_pool(sys.argv[1])
store, log = open_store(), Path(sys.argv[2])
cells = [cell(f"c{n}", Work(f"last{n}", (Work(f"first{n}", seconds=1.0, log=log),), log=log)) for n in range(6)]
with kind.open(PoolOptions(address)) as pool:
    Scheduler(cells, pool).run()
"""


def test_killed_driver_resumes_with_finished_steps(cluster: RayCluster, base: Path) -> None:
    log = base / "resumed"
    command = [sys.executable, "-c", DRIVER, f"ray:{cluster.address}", str(log)]
    variables = {**os.environ, **cluster.variables, "TRTSPEC_CACHE": str(base / "driver2")}
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), variables["PYTHONPATH"]])
    first = subprocess.Popen(command, env=variables)
    try:
        assert wait_until(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, COMMAND_S)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(10)
    # A step that ended as its worker was stopped may be in the store of one node, but not in the team store.
    handed_over = TeamStore(f"file:{base / 'team'}").find([entry.key for entry in entries(base)])
    done = {entry.name for entry in entries(base) if entry.key in handed_over}
    lines = len(log.read_text().splitlines())
    subprocess.run(command, env=variables, timeout=COMMAND_S, check=True)
    again = {line.split()[0] for line in log.read_text().splitlines()[lines:]}
    assert {f"first{n}" for n in range(6)} & done
    assert not again & done
    assert {f"{step}{n}" for n in range(6) for step in ("first", "last")} <= {entry.name for entry in entries(base)}


def test_nodes_with_separate_stores_require_a_team_store(cluster: RayCluster, base: Path) -> None:
    without = {**cluster.variables, "TRTSPEC_REMOTE": "", "TRTSPEC_CACHE": str(base / "alone")}
    extra = cluster.variables.pop("TRTSPEC_REMOTE")
    node = cluster.add(base / "cache-d", {"zone": "d"})
    cluster.variables["TRTSPEC_REMOTE"] = extra
    try:
        kind, address = find_pool(f"ray:{cluster.address}")
        apart = pytest.raises(TrtspecError, match="the store is not this machine's")
        with variables_set(without), kind.open(PoolOptions(address)) as pool, apart as caught:
            pool.prepare()
        assert "TRTSPEC_REMOTE" in str(caught.value)
        unreachable = {**without, "TRTSPEC_REMOTE": "oci://127.0.0.1:9/team"}
        refused = pytest.raises(TrtspecError, match=r"cannot use the team store: .*Connection refused")
        with variables_set(unreachable), kind.open(PoolOptions(address)) as pool, refused:
            pool.prepare()
    finally:
        cluster.remove(node)


def test_interrupted_build_ends_its_tasks_in_time(cluster: RayCluster, base: Path, pool: Pool) -> None:
    log = base / "never"
    scheduler = Scheduler([cell("a", Work("long", seconds=600.0, log=log))], pool)

    class Interrupter:
        def changed(self, cells: object, steps: object) -> None:
            raise KeyboardInterrupt

        def advanced(self, run: object, n_bytes: int) -> None: ...
        def message(self, run: object, text: str) -> None: ...
        def step_finished(self, run: object) -> None: ...
        def cell_finished(self, run: object) -> None: ...

    scheduler._observer = Interrupter()
    with pytest.raises(KeyboardInterrupt):
        scheduler.run()
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 30
    assert not list((base / "cache-a").rglob("long*"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "//127.0.0.1:1", "nonsense", "//head"])
def test_unreachable_cluster_is_refused_at_once(address: str) -> None:
    kind, rest = find_pool(f"ray:{address}")
    started = time.monotonic()
    with pytest.raises(TrtspecError, match=r"nothing listens there|expected HOST:PORT"):
        kind.open(PoolOptions(rest))
    assert time.monotonic() - started < 8


def test_end_of_the_drivers_raylet_is_explained() -> None:
    """Tasks on another node are lost one by one, but without its own raylet the driver cannot start any."""
    import ray

    from trtspec.fleet.pools.ray import _explain_lost_connection

    message = "ray: Ray's raylet on the machine that drives the build has ended\nhint: run the same command again"
    with pytest.raises(TrtspecError, match=message), _explain_lost_connection("ray"):
        raise ray.exceptions.LocalRayletDiedError


LISTENERS = """
from pathlib import Path
from trtspec.fleet.pool import PoolOptions, find_pool

def listeners():
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == "0A"}

before = listeners()
kind, address = find_pool("ray")
with kind.open(PoolOptions(address)):
    print(*(listeners() - before), sep="\\n")
"""


def test_local_cluster_listens_on_loopback_only(base: Path) -> None:
    variables = {**os.environ, "TRTSPEC_CACHE": str(base / "listeners")}
    done = subprocess.run(
        [sys.executable, "-c", LISTENERS], env=variables, capture_output=True, text=True, timeout=COMMAND_S, check=True
    )
    found = done.stdout.split()
    assert len(found) >= 3
    loopback = ("0100007F", "0000000000000000FFFF00000100007F")  # 127.0.0.1, also as an IPv6 address
    assert [each for each in found if each.partition(":")[0] not in loopback] == []
