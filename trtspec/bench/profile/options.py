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
    from trtspec.bench.load.runner import ServerAddress


@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search; see the command's options."""

    samples: int
    max_tokens: int
    max_draft_len: int
    concurrency: int
    seed: int


@dataclass(frozen=True)
class ProfileRequest:
    """The command's options."""

    recipe: Path
    overrides: list[str]
    prompts: Path | None
    drafts: list[str] | None
    methods: list[str] | None
    limits: SearchLimits


@dataclass(frozen=True)
class ServerSet:
    """The server to profile, one without speculation (None to switch drafting off), and its artifact.

    `root` is None if only an address is known; `others` serve the same target with other draft lengths.
    """

    served: ServerAddress
    baseline: ServerAddress | None
    root: Path | None
    others: Sequence[ServerAddress] = ()


class BuildProgress(Observer, Protocol):
    """Progress of a build, including its sources' downloads and digests."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Report downloaded bytes of a source."""

    def reading(self, done: int, total: int) -> None:
        """Report hashed bytes of the sources."""


@dataclass(frozen=True)
class ProgressUI:
    """Progress displays for builds and counted work."""

    building: Callable[[], AbstractContextManager[BuildProgress]]
    counting: Callable[[], AbstractContextManager[OnProgress]]
