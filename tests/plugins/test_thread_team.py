# SPDX-License-Identifier: Apache-2.0
"""The operations of the team of threads, on an emulated machine, against plain loops (`thread_team.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.emulation import HERE, PLUGINS, compile_emulated

Compare = Callable[..., str]

TEAMS = [(1, 32), (1, 128), (2, 64), (4, 96), (8, 32)]
ENTRY_BYTES = [2, 4]


def compiled(out: Path, *first_includes: Path) -> Compare:
    """Return a function that compares all threads' results on three rows, and returns the error or ""."""
    library = ctypes.CDLL(str(compile_emulated(out, HERE / "thread_team.cpp", first_includes=first_includes)))
    room = 200

    def call(team: tuple[int, int], slots: int, entry_bytes: int, size: int, lead: int, at_end: bool, seed: int) -> str:
        message = ctypes.create_string_buffer(room)
        shape = [ctypes.c_int(value) for value in (*team, slots, entry_bytes, size, lead, at_end)]
        library.compare_team(*shape, ctypes.c_uint64(seed), message, ctypes.c_int(room))
        return message.value.decode()

    return call


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """The unmodified team."""
    return compiled(tmp_path_factory.mktemp("thread_team"))


@pytest.mark.parametrize("entry_bytes", ENTRY_BYTES)
@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("slots", [0, 1, 2])
def test_operations_equal_plain_loops(compare: Compare, team: tuple[int, int], slots: int, entry_bytes: int) -> None:
    """Rows have any alignment; adjacent memory belongs to other rows or must not be accessed."""
    for size in (1, 31, 2003):
        for lead, at_end in ((0, False), (1, True), (3, False)):
            assert compare(team, slots, entry_bytes, size, lead, at_end, seed=size) == "", (size, lead, at_end)


def test_more_than_two_slots_store_prefetched_rows(compare: Compare) -> None:
    for slots in (3, 4):
        assert compare((2, 64), slots, 2, 1009, 1, True, 3) == ""


# errors that are intermittent on a GPU, and occur here in some order of the threads
MISTAKES = {
    "partials are read before all are there": (
        "        block_.team_barrier();\n        return partials;",
        "        return partials;",
    ),
    "one set of partials": ("parity_ ^= 1;\n        uint64_t* partials", "uint64_t* partials"),
    "bins are read before they are summed": (
        "        block_.barrier();\n        uint64_t before",
        "        uint64_t before",
    ),
    "rows are read before they are copied": ("        wait_for(slot);\n", ""),
    "what stands before a row is of it": ("first + i >= 0 && first + i < size", "first + i < size"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_injected_mistakes_are_detected(tmp_path: Path, mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    source = (PLUGINS / "common" / "thread_team.h").read_text()
    assert source.count(right) == 1
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "thread_team.h").write_text(source.replace(right, wrong))
    compare = compiled(tmp_path, tmp_path)
    assert any(compare((4, 64), 2, 2, 2003, 3, False, seed) for seed in range(10))
