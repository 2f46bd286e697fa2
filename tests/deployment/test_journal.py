# SPDX-License-Identifier: Apache-2.0
"""The journal after a crash within a line: no lines are merged and no other lines are lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord

RECORD = DeploymentRecord("n", "live", "/artifacts/é", 1, 2, 8000, 8001, 8002, "shm", True, manifest="m", revision=1)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeploymentJournal:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path))
    found = DeploymentJournal("n")
    found.root.mkdir(parents=True)
    return found


def states(journal: DeploymentJournal) -> list[str]:
    return [entry["state"] for entry in journal.entries()]


def test_journal_entries_are_read_back_in_order(journal: DeploymentJournal) -> None:
    assert journal.entries() == []
    for number, state in enumerate(("staged", "loaded", "live")):
        journal.note(replace(RECORD, revision=number), state, f"line {number}\nwith a break")
    assert states(journal) == ["staged", "loaded", "live"]
    assert [entry["revision"] for entry in journal.entries()] == [0, 1, 2]


def test_truncated_journal_line_loses_only_that_entry(journal: DeploymentJournal) -> None:
    path = journal.root / "journal.jsonl"
    journal.note(RECORD, "staged")
    before = path.read_bytes()
    journal.note(RECORD, "loaded", "a detail")
    whole = path.read_bytes()
    for cut in range(len(before), len(whole)):
        path.write_bytes(whole[:cut])
        assert states(journal) == ["staged"], "an unterminated line is ignored"
        journal.note(RECORD, "live")
        complete = ["loaded"] if cut == len(whole) - 1 else []
        assert states(journal) == ["staged", *complete, "live"], cut
        journal.note(RECORD, "stopped")
        assert states(journal)[-2:] == ["live", "stopped"]


def test_invalid_journal_lines_are_skipped(journal: DeploymentJournal) -> None:
    journal.note(RECORD, "staged")
    with (journal.root / "journal.jsonl").open("ab") as file:
        file.write(b'\n[1]\n"x"\n\xff\xfe\n{"state"\n')
    journal.note(RECORD, "live")
    assert states(journal) == ["staged", "live"]
