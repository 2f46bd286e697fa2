# SPDX-License-Identifier: Apache-2.0
"""What many tests start from: a tiny pair with its recipe in a directory of the test's own, and the command line.

Sets what must be set before torch is imported: on models this small, threads cost more than they bring.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests._support.strict_hw import pytest_addoption, pytest_runtest_makereport  # noqa: F401 - hooks
from tests._support.tiny import make_pair

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Deployments of whoever runs the tests change none of them, and no test leaves one: each has a directory of its own.
os.environ["TRTSPEC_STATE"] = "/dev/null/state"
# Tests start processes while threads of theirs call by gRPC; its handlers of forks let 3 in 100 of these die.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# A fork must not collect an earlier test's Ray client: its destructor joins threads that the fork does not have.
os.register_at_fork(after_in_child=gc.freeze)
# A build waits for the disk ninety times, which only a machine that loses its power would tell. Children do wait.
os.fsync = os.fdatasync = lambda descriptor: None

pytest_plugins = (
    "tests._support.costs",
    "tests._support.sharing",
    "tests._support.order",
    "tests._support.skips",
    "tests._support.thorough",
    "tests._support.golden",
)


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code, and what it printed where."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the one JSON document that stdout has to be."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        assert document["format_version"] == 1
        return document


Run = Callable[..., Outcome]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what compiles."""
    for item in items:
        if "build_kernels" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what stays until the end: modules, and some ten thousand tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def pair_master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair that every test gets a copy of."""
    return make_pair(tmp_path_factory.mktemp("pair")).parent


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a store, a state and a hub cache of its own."""
    for variable, name in (("TRTSPEC_CACHE", "cache"), ("TRTSPEC_STATE", "state"), ("HF_HUB_CACHE", "hub")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("TRTSPEC_UNDECIDED", "pass")  # whatever machine runs the tests; --undecided replaces it
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recipe(pair_master: Path, workplace: Path) -> Path:
    """The recipe of a tiny pair that the test may change."""
    shutil.copytree(pair_master, workplace, dirs_exist_ok=True)
    return workplace / "recipe.yaml"


@pytest.fixture
def trtspec(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, as the shell would."""
    from trtspec.cli.app import main

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Outcome(ended.value.code, *capfd.readouterr())

    return run


@pytest.fixture
def artifact(recipe: Path, trtspec: Run) -> Path:
    """The built artifact of the tiny pair."""
    assert trtspec("build", recipe).code == 0
    return recipe.parent / "build" / "tiny"


@pytest.fixture(scope="session")
def build_kernels() -> Callable[..., Path]:
    """A function that compiles kernels of plugins/ (none named: all) for CPUs, once for equal sources and all runs.

    Every library lies in a cache of its own.
    """
    from tests._support.compiled import CACHE, run_build
    from trtspec.core.errors import TrtspecError
    from trtspec.kernels import build as building
    from trtspec.kernels.build import build_library, plan_library

    def build(*names: str) -> Path:
        try:
            spec = plan_library(names)
        except TrtspecError as missing:
            pytest.skip(str(missing))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRTSPEC_CACHE", str(CACHE / "kernels" / spec.key))
            patch.setattr(building, "_run", run_build)
            return build_library(spec)

    return build


@pytest.fixture(scope="session")
def kernel_library(build_kernels: Callable[..., Path]) -> Path:
    """The kernels of plugins/, compiled for CPUs."""
    return build_kernels()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread, as calibration does, for an oracle that has to round where it does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
