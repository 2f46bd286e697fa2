# SPDX-License-Identifier: Apache-2.0
"""Every checkpoint of the corpus is rejected with an error, within memory and time limits; valid ones are accepted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoints.corpus import CASES, CONFIG, GOOD_CONFIG, WEIGHTS, Case, make_good, make_sharded
from trtspec.checkpoints.source import load_source
from trtspec.planning.inspection import inspect_path

pytestmark = pytest.mark.slow  # two commands in a separate process for each case

MAX_SECONDS = 2 * 2.0  # processor time for two commands, which is independent of other processes
MAX_RESIDENT_KIB = 256 << 10
# Forks for each directory on standard input, which saves the imports in each child, and prints the child's usage. It
# processes the first directory itself, to import all modules of the commands.
PARENT = """
import os, sys
from trtspec.cli.app import main

def inspect_and_check(root):
    os.chdir(root)
    output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for argv in (["inspect", "model", "--json"], ["check", "recipe.yaml"]):
        try:
            main(argv)
        except SystemExit as ended:
            print("exit code", ended.code, flush=True)

answers = os.fdopen(os.dup(1), "w", buffering=1)
first, *_ = sys.argv[1:]
inspect_and_check(first)
for root in map(str.rstrip, sys.stdin):
    child = os.fork()
    if not child:
        inspect_and_check(root)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    print(status, used.ru_maxrss, used.ru_utime + used.ru_stime, file=answers)
"""
RECIPE = """\
schema: trtspec.recipe/1
name: bad
target: {model: ./model}
speculation: {method: none}
"""


@dataclass(frozen=True)
class Ended:
    """A process's output on both streams, its peak memory, and its processor time."""

    text: str
    resident_kib: int
    seconds: float


Runner = Callable[[Path], Ended]


@pytest.fixture(scope="module")
def inspect_and_check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Run both commands on the checkpoint "model" in a directory, in a separate process."""
    first = tmp_path_factory.mktemp("first")
    make_good(first / "model")
    (first / "recipe.yaml").write_text(RECIPE)
    argv = [sys.executable, "-c", PARENT, first]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None

        def run(root: Path) -> Ended:
            (root / "recipe.yaml").write_text(RECIPE)
            print(root, file=parent.stdin, flush=True)
            status, resident_kib, seconds = parent.stdout.readline().split()
            assert status == "0"
            return Ended((root / "output").read_text(), int(resident_kib), float(seconds))

        yield run
        parent.stdin.close()


def test_valid_checkpoint_is_accepted(inspect_and_check: Runner, tmp_path: Path) -> None:
    make_good(tmp_path / "model")
    assert inspect_and_check(tmp_path).text.count("exit code 0") == 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_checkpoint_is_rejected_within_limits(case: Case, inspect_and_check: Runner, tmp_path: Path) -> None:
    case.make(tmp_path / "model")
    ended = inspect_and_check(tmp_path)
    inspected, _, checked = ended.text.partition("exit code 1")
    assert checked.count("exit code 1") == 1, ended.text[:3000]
    assert "Traceback" not in ended.text
    for words in case.words:
        assert words in inspected
        assert words in checked
    assert len(ended.text) < 20_000
    assert ended.resident_kib < MAX_RESIDENT_KIB
    assert ended.seconds < MAX_SECONDS


@pytest.mark.parametrize("architecture", ["Bert", "x" * 900_000], ids=["short", "long"])
def test_unsupported_architecture_is_inspected_but_fails_check(
    architecture: str, inspect_and_check: Runner, tmp_path: Path
) -> None:
    """It is inspected, since some engines run it unconverted, but not converted."""
    make_good(tmp_path / "model")
    (tmp_path / "model" / CONFIG).write_text(json.dumps(GOOD_CONFIG | {"architectures": [architecture]}))
    ended = inspect_and_check(tmp_path)
    inspected, _, checked = ended.text.partition("exit code 0")
    assert "none" in inspected
    assert f"architecture '{architecture[:3]}" in checked
    assert checked.count("exit code 1") == 1
    assert len(ended.text) < 20_000
    assert ended.resident_kib < MAX_RESIDENT_KIB


class TestWhatIsOnlyOdd:
    def test_wrong_total_size_in_index_is_accepted(self, tmp_path: Path) -> None:
        make_sharded(make_good(tmp_path / "model"), metadata={"total_size": -1})
        assert inspect_path(tmp_path / "model")["files"] == ["a.safetensors", "b.safetensors"]

    def test_links_within_the_directory_are_accepted(self, tmp_path: Path) -> None:
        root = make_good(tmp_path / "model")
        (root / WEIGHTS).rename(root / "weights")
        (root / WEIGHTS).symlink_to("weights")
        assert inspect_path(root)["kind"] == "source checkpoint"

    def test_link_to_the_directory_is_accepted(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(make_good(tmp_path / "model"))
        assert inspect_path(tmp_path / "link")["kind"] == "source checkpoint"


def as_snapshot(root: Path, blobs: Path) -> Path:
    """Move the files of `root` into `blobs` and replace them by links, like a hub cache."""
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(root.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(os.path.relpath(blobs / str(number), root))
    return root


class TestAHubCache:
    @pytest.mark.parametrize("blobs", ["models--a--b/blobs", "blobs"])
    def test_snapshot_of_links_to_blobs_is_accepted(self, blobs: str, tmp_path: Path) -> None:
        root = as_snapshot(make_good(tmp_path / "models--a--b" / "snapshots" / "0"), tmp_path / blobs)
        assert len(load_source(root).files) == 3

    @pytest.mark.parametrize("blobs", ["models--a--c/blobs", "models--a--b/blobs2", "models--a--b/snapshots/1"])
    def test_links_to_blobs_of_another_repository_are_rejected(self, blobs: str, tmp_path: Path) -> None:
        root = as_snapshot(make_good(tmp_path / "models--a--b" / "snapshots" / "0"), tmp_path / blobs)
        with pytest.raises(Exception, match=r"config\.json: a link to '.*', which is outside its directory"):
            load_source(root)
