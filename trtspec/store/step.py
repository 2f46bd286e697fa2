# SPDX-License-Identifier: Apache-2.0
"""Interface of build steps: a frozen value with everything that its output depends on, and a method to produce it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from trtspec.core.hashing import Segments
from trtspec.store.digest import compute_digest, key_fields


class RunStopped(Exception):
    """Raised in a step of a run that has failed elsewhere. Internal; users never see it."""


class StepProgress:
    """Receives the progress of a running step; this base class ignores it."""

    def advance(self, n_bytes: int) -> None:
        """Count `n_bytes` more of the step's `total_bytes` as done; raises RunStopped if the step must end."""

    def set_message(self, text: str) -> None:
        """Report the step's current activity as text."""


FoundDigests = Mapping[Path, tuple[str, str]]  # (identity before the read, digest) of source files


class Inputs:
    """The inputs of a running step: `inputs[dependency]` is the directory with the output files of a dependency.

    `devices` are reserved for the step while it runs: as many as it requires, or all if there are fewer. A step that
    hashes unread source files records their digests in `found_digests`.
    """

    def __init__(self, directories: Mapping[str, Path], devices: tuple[str, ...] = ()) -> None:
        self._directories = directories
        self.devices = devices
        self.found_digests: dict[Path, tuple[str, str]] = {}

    def __getitem__(self, step: Step) -> Path:
        if step.key not in self._directories:
            raise KeyError(f"{step.name} is not a dependency of the step that requests it")
        return self._directories[step.key]


def notes_dir(out: Path) -> Path:
    """Return the directory for a resumable step's own state, next to `out`; it is not part of the output."""
    return out.parent / "notes"


class Step(ABC):
    """One unit of work. A subclass is a frozen dataclass with this contract:

    * Its fields are its complete input: plain data, enum members, frozen dataclasses of them, other steps and tuples of
      steps. Everything else that changes the bytes it writes (a file's content, a tool's version) is in a field as a
      digest or text. `field(metadata={"key": False})` marks fields that do not change them, such as source locations.
    * `VERSION` is incremented when the same fields would produce different bytes.
    * `run` writes regular files and directories below `out`, which exists and is empty, and nowhere else. The files
      become read-only, so it must not hard-link files that it does not own; empty directories and executable bits are
      lost. It never changes its inputs.
    * `run` may return the segments (core/hashing.py) of files that it hashed while writing, by path below `out`; the
      store does not read those again. Such files must not be written afterwards.
    * `run` raises TrtspecError for problems that a user can fix; the store deletes `out` after any exception.
    * A `RESUMABLE` step finds in `out` the files of an earlier, interrupted run of the same key and continues from
      there; it keeps its own state in `notes_dir(out)`. The store keeps both until the output is complete. The final
      output must not depend on interruptions.
    * A step that `HASHES_SOURCES` can run with unread files (store/files.py) and records their digests in its inputs.
    """

    VERSION: ClassVar[int]
    RESUMABLE: ClassVar[bool] = False
    HASHES_SOURCES: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The step's name for users, by default derived from the class name, such as `split-prompts`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(self).__name__).lower()

    @abstractmethod
    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments] | None:
        """Write the step's files below `out`; return the segments, by path, of files hashed while writing, or None."""

    @property
    def total_bytes(self) -> int:
        """Number of bytes that `run` will report to its progress; 0 if unknown or if no data is moved."""
        return 0

    @property
    def kind(self) -> str:
        """Name of a group of steps with about equal throughput, for time estimates."""
        return type(self).__qualname__

    @property
    def output_bytes(self) -> int:
        """Minimum number of bytes that `run` will write; 0 if negligible."""
        return 0

    def disk_bytes(self, directory: Path) -> int:
        """Minimum bytes on disk that the output takes below `directory`: fewer than its size if blocks are shared."""
        return self.output_bytes

    @property
    def is_shared(self) -> bool:
        """Whether a team store gets the output; not if every machine can write it as fast as it can fetch it."""
        return True

    @property
    def num_devices(self) -> int:
        """Number of devices that `run` uses; a step with devices may run concurrently with others."""
        return 0

    def check_machine(self) -> None:
        """Raise StepError if this machine's tools differ from those in the key; workers call it before `run`."""
        return

    @property
    def command(self) -> tuple[str, ...] | None:
        """The command line that `run` executes, if any."""
        return None

    @property
    def dependencies(self) -> tuple[Step, ...]:
        """The steps among the fields, in field order."""
        found: list[Step] = []
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            found += [each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Step)]
        return tuple(found)

    @property
    def key_parts(self) -> dict[str, str]:
        """Digests of the parts of the key, by field name, to explain why two keys differ."""
        digests = {name: compute_digest("trtspec.field/1", _by_key(value)) for name, value in key_fields(self).items()}
        return {"kind of step": f"{self._kind()}/{self.VERSION}", **digests}

    @cached_property
    def key(self) -> str:
        """The identity of the output: a digest of class, version and fields, in which steps are replaced by keys."""
        identity = {name: _by_key(value) for name, value in key_fields(self).items()}
        return compute_digest("trtspec.step/1", (self._kind(), self.VERSION, identity))

    @classmethod
    def _kind(cls) -> str:
        """Return the class name, with the module outside trtspec, so that no other package can share a key."""
        is_built_in = cls.__module__.partition(".")[0] == "trtspec"
        return cls.__qualname__ if is_built_in else f"{cls.__module__}.{cls.__qualname__}"


@dataclass(frozen=True)
class _Upstream:
    key: str


def _by_key(value: object) -> object:
    if isinstance(value, Step):
        return _Upstream(value.key)
    return tuple(map(_by_key, value)) if type(value) is tuple else value
