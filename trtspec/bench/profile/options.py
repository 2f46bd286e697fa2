# SPDX-License-Identifier: Apache-2.0
"""Options and progress callbacks of `profile` and `tune`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trtspec.bench.profile.candidate import OnProgress
from trtspec.store.executor import Observer

if TYPE_CHECKING:
    from trtspec.bench.load.runner import Server


@dataclass(frozen=True)
class Limits:
    """Limits of the search; see the command's options."""

    samples: int
    max_tokens: int
    max_draft_len: int
    concurrency: int
    seed: int


@dataclass(frozen=True)
class Asked:
    """The command's options."""

    recipe: Path
    overrides: list[str]
    prompts: Path | None
    drafts: list[str] | None
    methods: list[str] | None
    limits: Limits


@dataclass(frozen=True)
class Servers:
    """The server to profile, one without speculation (None to switch drafting off), and its artifact.

    `root` is None if only an address is known; `others` serve the same target with other draft lengths.
    """

    served: Server
    baseline: Server | None
    root: Path | None
    others: Sequence[Server] = ()


class Bars(Observer, Protocol):
    """Progress of a build, including its sources' downloads and digests."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Report downloaded bytes of a source."""

    def reading(self, done: int, total: int) -> None:
        """Report hashed bytes of the sources."""


@dataclass(frozen=True)
class Screen:
    """Progress displays for builds and counted work."""

    building: Callable[[], AbstractContextManager[Bars]]
    counting: Callable[[], AbstractContextManager[OnProgress]]
