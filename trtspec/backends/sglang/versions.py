# SPDX-License-Identifier: Apache-2.0
"""The features of each SGLang release, and the methods that SGLang runs.

The facts of releases are in versions.yaml. A method is described by `methods/NAME/sglang.py`. Suffix decoding has no
such file: NGRAM drafts a fixed number of tokens, independent of a match's length and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.paths import load_package_yaml
from trtspec.core.registry import discover_all
from trtspec.core.versions import KnownReleases, facts_by_release
from trtspec.methods.base import DraftShape

BLOCK_VERIFICATION = "speculative_use_block_verification"
NETS = "nets_"  # and the name of a method: the fact of its drafter classes


@dataclass(frozen=True)
class SglangRelease:
    """An SGLang release; `facts` are sets of names by fact, which versions.yaml describes."""

    version: str
    facts: dict[str, frozenset[str]]

    @property
    def nets(self) -> dict[str, list[str]]:
        """Return the release's drafter classes by trtspec's method, for methods that have one."""
        found = {name.removeprefix(NETS): sorted(nets) for name, nets in self.facts.items() if name.startswith(NETS)}
        return {method: nets for method, nets in found.items() if nets}

    @property
    def mtp_targets(self) -> frozenset[str]:
        """Return the target classes with MTP layers that can draft."""
        return self.facts["mtp_targets"]

    @property
    def schedule(self) -> bool:
        """Return whether the draft length can depend on the number of requests."""
        return "schedule" in self.facts["does"]

    @property
    def block(self) -> bool:
        """Return whether block verification is supported."""
        return BLOCK_VERIFICATION in self.facts["fields"]

    @property
    def methods(self) -> dict[str, str]:
        """Return SGLang's names of the release's algorithms, by trtspec's method names."""
        known = {ours: each for ours, each in methods().items() if not each.has_net or ours in self.nets}
        return {ours: each.name for ours, each in known.items() if each.name in self.facts["algorithms"]}


@dataclass(frozen=True)
class SglangMethod:
    """A method in SGLang's terms, registered as `METHOD` of `methods/NAME/sglang.py`.

    Attributes:
        name: SGLang's name of the algorithm.
        fields: returns the method's options and draft shape as fields of ServerArgs.
        tree_width: returns the number of continuations of each draft token for the method's options.
        has_net: the class of the drafter's checkpoint decides whether a release supports it (`SglangRelease.nets`).
        drafts_blocks: all tokens are drafted in one step.
        copies: returns further files that the artifact contains, by the directory of the copies; those of a directory
            come from one directory.
        has_eagle_worker: it runs on SGLang's EAGLE worker, which can adapt the draft length of chains.
        check: yields the problems of a recipe that concern this method alone.
    """

    name: str
    fields: Callable[[Any, DraftShape], Mapping[str, Any]] = lambda options, shape: {}
    tree_width: Callable[[Any], int] = lambda options: 1
    has_net: bool = False
    drafts_blocks: bool = False
    copies: Callable[[Any], Mapping[str, Sequence[Path]]] = lambda options: {}
    has_eagle_worker: bool = False
    check: Callable[[PlanContext], Iterable[Diagnostic]] = lambda context: ()

    @property
    def verifies_blocks(self) -> bool:
        """Return whether releases with block verification support it for this method."""
        return self.has_eagle_worker or self.drafts_blocks


def methods() -> dict[str, SglangMethod]:
    return discover_all("trtspec.methods", "METHOD", "sglang")


def fact_names() -> tuple[str, ...]:
    """Return the names of the facts in versions.yaml."""
    nets = (f"{NETS}{ours}" for ours, each in methods().items() if each.has_net)
    return ("algorithms", "fields", *nets, "mtp_targets", "does")


@cache
def releases() -> dict[str, SglangRelease]:
    """Return the known releases by version, oldest first; other versions have the nearest one's facts."""
    found = facts_by_release(load_package_yaml(Path(__file__).with_name("versions.yaml")), fact_names())
    return KnownReleases({version: SglangRelease(version, facts) for version, facts in found.items()})
