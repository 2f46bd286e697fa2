# SPDX-License-Identifier: Apache-2.0
"""Steps that write a few files, and helpers to inspect the store that contains them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.errors import StepError
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir
from trtspec.store.store import Store


@dataclass(frozen=True)
class Write(Step):
    """Writes two files and counts its runs in a file outside the store."""

    VERSION = 1
    text: str
    runs: Path = field(metadata={"key": False})
    pause_s: float = field(default=0, metadata={"key": False})
    trouble: Callable[[Path], object] | None = field(default=None, metadata={"key": False})

    @property
    def name(self) -> str:
        return f"write-{self.text}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        with self.runs.open("a") as file:
            file.write("x")
        (out / "deep" / "er").mkdir(parents=True)
        (out / "deep" / "er" / "one").write_text(self.text)
        time.sleep(self.pause_s)
        if self.trouble:
            self.trouble(out)
        (out / "two").write_text(self.text * 1000)


def build(store: Store, step: Step) -> bool:
    obtained = store.obtain(step)
    entry = obtained.entry
    assert (entry.files_dir / "deep/er/one").read_text() == entry.name.removeprefix("write-")
    return obtained.built


def count(step: Write) -> int:
    return step.runs.stat().st_size if step.runs.exists() else 0


def leftovers(store: Store) -> list[Path]:
    return [path for path in (store.root / "tmp").rglob("*") if path.exists()]


def overwrite(path: Path, position: int = 0) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


@dataclass(frozen=True)
class Append(Step):
    """A resumable step: each run adds and records a file, until there are three."""

    VERSION = 1
    RESUMABLE = True
    trouble: Callable[[], object] | None = field(default=None, metadata={"key": False})

    @property
    def name(self) -> str:
        return "append"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        assert all(path.stat().st_mode & 0o200 for path in out.iterdir())  # check the mode: root can always write
        notes = notes_dir(out) / "done"
        while (done := len(notes.read_text()) if notes.exists() else 0) < 3:
            (out / f"file{done}").write_text(str(done))
            notes.write_text("x" * (done + 1))
            if self.trouble:
                self.trouble()


def fail() -> None:
    raise StepError("no more")
