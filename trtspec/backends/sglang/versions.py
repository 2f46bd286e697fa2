# SPDX-License-Identifier: Apache-2.0
"""The features of each SGLang release, and the methods that SGLang runs.

The facts of releases are in versions.yaml. A method is described by `methods/NAME/sglang.py`. UNO has no such file: it
drafts with a LoRA adapter. Neither has suffix decoding: NGRAM drafts a fixed number of tokens, independent of a match's
length and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.paths import load_package_yaml
from trtspec.core.registry import discover_all
from trtspec.core.versions import KnownReleases
from trtspec.methods.base import DraftShape


@dataclass(frozen=True)
class SglangRelease:
    """One SGLang release: the drafter classes `nets` by method, and the targets with MTP layers.

    `schedule`: the draft length can depend on the number of requests. `block`: block verification is supported.
    """

    version: str
    nets: dict[str, list[str]]
    mtp_targets: list[str]
    schedule: bool
    block: bool

    @property
    def methods(self) -> dict[str, str]:
        """Return SGLang's names of the release's algorithms, by trtspec's method names."""
        known = {ours: each for ours, each in methods().items() if not each.has_net or ours in self.nets}
        return {ours: each.name for ours, each in known.items()}


@dataclass(frozen=True)
class SglangMethod:
    """A method in SGLang's terms, registered as `METHOD` of `methods/NAME/sglang.py`.

    Attributes:
        name: SGLang's name of the algorithm.
        fields: returns the method's options and draft shape as fields of ServerArgs.
        tree_width: returns the number of continuations of each draft token for the method's options.
        has_net: the class of the drafter's checkpoint decides whether a release supports it (`SglangRelease.nets`).
        drafts_blocks: all tokens are drafted in one step.
        has_eagle_worker: it runs on SGLang's EAGLE worker, which can adapt the draft length of chains.
        check: yields the problems of a recipe that concern this method alone.
    """

    name: str
    fields: Callable[[Any, DraftShape], Mapping[str, Any]] = lambda options, shape: {}
    tree_width: Callable[[Any], int] = lambda options: 1
    has_net: bool = False
    drafts_blocks: bool = False
    has_eagle_worker: bool = False
    check: Callable[[PlanContext], Iterable[Diagnostic]] = lambda context: ()

    @property
    def verifies_blocks(self) -> bool:
        """Return whether releases with block verification support it for this method."""
        return self.has_eagle_worker or self.drafts_blocks


def methods() -> dict[str, SglangMethod]:
    return discover_all("trtspec.methods", "METHOD", "sglang")


@cache
def releases() -> dict[str, SglangRelease]:
    """Return the known releases by version, oldest first; other versions have the nearest one's facts."""
    entries = load_package_yaml(Path(__file__).with_name("versions.yaml"))
    return KnownReleases({entry["version"]: SglangRelease(**entry) for entry in entries})
