# SPDX-License-Identifier: Apache-2.0
"""Outputs that move between machines through a team store that fails for some time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fleet.steps import Work
from trtspec.core.errors import StepError
from trtspec.fleet import hand_over
from trtspec.fleet.hand_over import fetch_output, send_output
from trtspec.fleet.worker import run_step
from trtspec.store.step import StepProgress
from trtspec.store.store import Store
from trtspec.store.team.client import TeamStore


class Outage:
    """A directory as a team store, which is a file instead until `lasts` pauses have passed."""

    def __init__(self, path: Path, lasts: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._lasts, self.pauses = path, lasts, 0
        self._now = 0.0
        clock = SimpleNamespace(sleep=self._sleep, monotonic=lambda: self._now)
        monkeypatch.setattr(hand_over, "time", clock)

    def begin(self) -> None:
        if self.path.exists():
            self.path.rename(self.path.with_name("away"))
        self.path.write_text("not a directory")

    def _sleep(self, seconds: float) -> None:
        self.pauses, self._now = self.pauses + 1, self._now + seconds
        if self.pauses == self._lasts:
            self.path.unlink()
            if (away := self.path.with_name("away")).exists():
                away.rename(self.path)


def node(tmp_path: Path, name: str) -> Store:
    return Store(tmp_path / name, remote=TeamStore(f"file:{tmp_path / 'team'}"))


def test_step_ends_when_the_team_store_has_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage, first = Outage(tmp_path / "team", 3, monkeypatch), node(tmp_path, "first")
    outage.begin()
    messages: list[str] = []

    class Progress(StepProgress):
        def set_message(self, text: str) -> None:
            messages.append(text)

    work = Work("x")
    outcome = run_step(work, first, "n", lambda total: Progress(), hands_over=True)
    assert (outcome.status, outage.pauses) == ("built", 3)
    assert len([each for each in messages if each.startswith("waiting for the team store: ")]) == 1
    assert fetch_output(work, node(tmp_path, "second"))


def test_output_of_another_machine_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage, need = Outage(tmp_path / "team", 3, monkeypatch), Work("need")
    node(tmp_path, "first").obtain(need)
    outage.begin()
    outcome = run_step(Work("x", (need,)), node(tmp_path, "second"), "n", lambda total: StepProgress())
    assert (outcome.status, outcome.missing, outage.pauses) == ("built", (), 3)


def test_team_store_that_does_not_return_fails_the_step_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, first = Outage(tmp_path / "team", 10**6, monkeypatch), node(tmp_path, "first")
    outage.begin()
    first.obtain(Work("x"))
    with pytest.raises(StepError, match=r"the team store has not accepted it for 120 s: .*team") as caught:
        send_output(Work("x"), first, lambda reason: None)
    assert "run the same command again" in str(caught.value)
    assert fetch_output(Work("y"), node(tmp_path, "second")) is None


def test_local_build_does_not_wait_for_its_team_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage, first = Outage(tmp_path / "team", 10**6, monkeypatch), node(tmp_path, "first")
    outage.begin()
    outcome = run_step(Work("x"), first, "n", lambda total: StepProgress())
    assert (outcome.status, outage.pauses) == ("built", 0)


def test_entry_that_another_machine_refused_is_replaced(tmp_path: Path) -> None:
    work, first = Work("x"), node(tmp_path, "first")
    entry = first.obtain(work).entry
    blobs = [path for path in (tmp_path / "team").rglob("*") if path.is_file() and path.read_bytes() == b"x()"]
    for blob in blobs:
        blob.chmod(0o644)
        blob.write_bytes(b"y()")
    assert blobs
    assert fetch_output(work, node(tmp_path, "second")) is None
    assert first.remote
    first.obtain(work)
    assert fetch_output(work, node(tmp_path, "third")) is None
    first.remote.distrust(work.key)
    first.obtain(work)
    found = fetch_output(work, node(tmp_path, "fourth"))
    assert found
    assert found.files == entry.files
