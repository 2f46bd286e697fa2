# SPDX-License-Identifier: Apache-2.0
"""`cache`: entries of the store and their recipes, and removal of unused entries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.cli.options import parse_bytes, parse_seconds
from trtspec.core.errors import StepError, TrtspecError
from trtspec.planning.pipeline import open_store
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store

DAY = 86400
WAIT_S = 30


@dataclass(frozen=True)
class Write(Step):
    """Step that writes a given number of bytes."""

    VERSION = 1
    size: int

    @property
    def name(self) -> str:
        return f"write-{self.size}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        (out / "file").write_bytes(bytes(self.size))


@dataclass(frozen=True)
class Stuck(Write):
    """Step that is interrupted and can be resumed."""

    RESUMABLE = True

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        super().run(out, inputs, progress)
        raise StepError("stuck")


def built(size: int, days_ago: float, *recipes: str) -> str:
    """Add an entry with this creation and use time to the store; return its key."""
    import time

    then = time.time() - days_ago * DAY
    store, step = Store(open_store().root, lambda: then), Write(size)
    for recipe in recipes or ("",):
        with store.holding([step.key], recipe) if recipe else store.uses.holding([step.key]):
            store.obtain(step)
    return step.key


@pytest.fixture
def keys(workplace: Path) -> dict[int, str]:
    """The keys of several entries by size."""
    return {
        1000: built(1000, 1, "tiny", "other"),
        2000: built(2000, 40, "tiny"),
        3000: built(3000, 10, "other"),
        4000: built(4000, 100),
    }


def test_cache_entries_list_the_recipes_that_use_them(keys: dict[int, str], trtspec: Run) -> None:
    document = trtspec("cache", "--json").document
    found = {each["key"]: each for each in document["entries"]}
    assert {size: found[key]["recipes"] for size, key in keys.items()} == {
        1000: ["other", "tiny"],
        2000: ["tiny"],
        3000: ["other"],
        4000: [],
    }
    assert document["recipes"] == [
        {"name": "other", "entries": 2, "bytes": 4000},
        {"name": "tiny", "entries": 2, "bytes": 3000},
    ]
    assert (document["bytes"], document["removed"], document["freed_bytes"]) == (10000, [], 0)
    assert found[keys[4000]]["last_used"] == found[keys[4000]]["created"]
    shown = trtspec("cache").out
    assert "other, tiny" in shown
    assert "\nrecipe  entries     size\nother         2  3.9 KiB\ntiny          2  2.9 KiB\n" in shown
    assert shown.endswith("4 entries, 9.8 KiB\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        (("--older-than", "30d"), {2000, 4000}),
        (("--older-than", "5w"), {2000, 4000}),
        (("--older-than", "101d"), set()),
        (("--max-size", "5kB"), {2000, 4000}),
        (("--max-size", "4KiB"), {2000, 4000}),
        (("--max-size", "3999"), {2000, 3000, 4000}),
        (("--max-size", "1GB"), set()),
        (("--max-size", "0B"), {1000, 2000, 3000, 4000}),
        (("--max-size", "9kB", "--older-than", "50d"), {4000}),
    ],
)
def test_prune_removes_entries_beyond_age_and_size_limits(
    limits: tuple[str, ...], gone: set[int], keys: dict[int, str], trtspec: Run
) -> None:
    expected = {keys[size] for size in gone}
    planned = trtspec("cache", "--prune", *limits, "--dry-run", "--json").document
    assert (set(planned["removed"]), planned["freed_bytes"], planned["dry_run"]) == (expected, sum(gone), True)
    assert len(planned["entries"]) == 4
    done = trtspec("cache", "--prune", *limits, "--json").document
    assert (set(done["removed"]), done["freed_bytes"], done["dry_run"]) == (expected, sum(gone), False)
    assert {each["key"] for each in done["entries"]} == {*keys.values()} - expected
    assert {path.stem for path in (open_store().root / "uses").iterdir()} <= {*keys.values()} - expected


def test_prune_reports_freed_bytes_and_bytes_still_linked(keys: dict[int, str], workplace: Path, trtspec: Run) -> None:
    store = open_store()
    os.link(store.get(keys[4000]).entry.files_dir / "file", workplace / "linked")
    prune = ("cache", "--prune", "--older-than", "30d")
    assert trtspec(*prune, "--dry-run").out.endswith(
        "2 would be removed, 2.0 KiB would be freed; 3.9 KiB more stay on disk because artifacts link to them\n"
    )
    done = trtspec(*prune)
    assert "2 entries, 3.9 KiB\n2 removed, 2.0 KiB freed; 3.9 KiB more stay on disk" in done.out
    assert (workplace / "linked").stat().st_size == 4000
    assert trtspec(*prune).out.endswith("0 removed, 0 B freed\n")


def test_clear_also_frees_interrupted_builds(keys: dict[int, str], trtspec: Run) -> None:
    with pytest.raises(StepError):
        open_store().obtain(Stuck(1 << 16))
    assert "4 entries, 9.8 KiB, and 64.0 KiB from interrupted builds\n" in trtspec("cache").out
    planned = trtspec("cache", "--clear", "--dry-run", "--json").document
    done = trtspec("cache", "--clear", "--json").document
    assert done["freed_bytes"] == planned["freed_bytes"] == 10000 + (1 << 16)
    assert set(done["removed"]) == set(planned["removed"]) == {*keys.values()}
    assert (done["entries"], done["resumable_bytes"]) == ([], 0)


HOLDER = """
import sys
from trtspec.planning.pipeline import open_store
with open_store().holding(sys.argv[1:], "elsewhere"):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(keys: dict[int, str]) -> Any:
    """A process that holds two of the entries and one that does not exist yet."""
    command = [sys.executable, "-c", HOLDER, keys[4000], keys[1000], "0" * 64]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--prune", "--max-size", "0"), ("--clear",)])
def test_entries_in_use_by_a_running_build_are_not_removed(
    how: tuple[str, ...], holder: Any, keys: dict[int, str], trtspec: Run
) -> None:
    left = {keys[4000], keys[1000]}
    assert set(trtspec("cache", *how, "--dry-run", "--json").document["removed"]) == {*keys.values()} - left
    done = trtspec("cache", *how)
    assert done.out.endswith("2 removed, 4.9 KiB freed\n2 are in use by a running build\n")
    assert {each["key"] for each in trtspec("cache", "--json").document["entries"]} == left
    holder.communicate("", WAIT_S)
    document = trtspec("cache", *how, "--json").document
    assert set(document["removed"]) == left
    assert list((open_store().root / "holds").iterdir()) == []


@pytest.mark.slow
def test_killed_build_does_not_prevent_removal(holder: Any, keys: dict[int, str], trtspec: Run) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(WAIT_S)
    assert len(trtspec("cache", "--clear", "--json").document["removed"]) == 4
    assert list((open_store().root / "holds").iterdir()) == []


def test_entry_in_use_is_not_removable_until_released(keys: dict[int, str]) -> None:
    store = open_store()
    with store.uses.holding([keys[1000]]):
        assert not store.remove(keys[1000])
    assert store.remove(keys[1000])


@pytest.mark.slow
def test_build_records_the_entries_it_used(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trtspec("build", recipe).code == 0
    assert trtspec("build", recipe, "--set", "name=other", "--set", "speculation.draft_len=2").code == 0
    document = trtspec("cache", "--json").document
    users = {(each["name"], tuple(each["recipes"])) for each in document["entries"]}
    assert ("convert-target", ("other", "tiny")) in users
    assert ("emit-repository", ("tiny",)) in users
    assert not any(each["held"] for each in document["entries"])
    root = open_store().root
    assert list((root / "holds").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["a file in the way", "no directory"])
def test_build_succeeds_if_cache_usage_cannot_be_recorded(harm: str, recipe: Path, trtspec: Run) -> None:
    root = open_store().root
    root.mkdir(parents=True)
    for name in ("uses", "holds") if harm == "a file in the way" else ():
        (root / name).write_text("")
    assert trtspec("build", recipe).code == 0
    if harm == "a file in the way":
        assert all(each["recipes"] == [] for each in trtspec("cache", "--json").document["entries"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prune",), "--prune and a limit require each other"),
        (("--older-than", "3d"), "--prune and a limit require each other"),
        (("--max-size", "3GB", "--dry-run"), "--prune and a limit require each other"),
        (("--prune", "--clear", "--max-size", "3GB"), "--clear cannot be combined with --prune"),
        (("--dry-run",), "--dry-run requires --prune or --clear"),
        (("--prune", "--older-than", "30"), "--older-than: '30' is not a duration\nhint: e.g. 30d, 12h or 2w"),
        (("--prune", "--max-size", "much"), "--max-size: 'much' is not a size\nhint: e.g. 200GB or 500GiB"),
    ],
)
def test_invalid_cache_options_are_rejected(
    arguments: tuple[str, ...], said: str, keys: dict[int, str], trtspec: Run
) -> None:
    refused = trtspec("cache", *arguments)
    assert (refused.code, refused.out) == (1, "")
    assert said in refused.err
    assert len(open_store().entries()) == 4


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "200GB", 200 * 10**9),
        (parse_bytes, "1.5 TiB", 3 << 39),
        (parse_bytes, "500m", 500 * 10**6),
        (parse_bytes, "7", 7),
        (parse_bytes, "-1GB", None),
        (parse_bytes, "1e3", None),
        (parse_bytes, "", None),
        (parse_seconds, "30d", 30 * DAY),
        (parse_seconds, "1.5h", 5400),
        (parse_seconds, "90", None),
        (parse_seconds, "1y", None),
    ],
)
def test_sizes_and_durations_are_parsed_or_rejected(
    parse: Callable[[str, str], float], text: str, value: float | None
) -> None:
    if value is None:
        with pytest.raises(TrtspecError, match="--x: "):
            parse(text, "--x")
    else:
        assert parse(text, "--x") == value
