# SPDX-License-Identifier: Apache-2.0
"""The features of each SGLang release; the facts are in versions.yaml, with their source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trtspec.core.paths import load_package_yaml

DATA = Path(__file__).with_name("versions.yaml")

# SGLang's algorithm names by trtspec's method names. UNO is omitted: it drafts with a LoRA adapter, which no method
# has. Suffix decoding is omitted: NGRAM drafts a fixed number of tokens, independent of a match's length and counts.
ALGORITHMS = {
    "draft_target": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
# methods for which the checkpoint's class decides whether a release supports them
CHECKPOINT_METHODS = ("eagle", "eagle3", "dflash", "dspark")


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
        return {
            name: theirs for name, theirs in ALGORITHMS.items() if name not in CHECKPOINT_METHODS or name in self.nets
        }


@cache
def releases() -> dict[str, SglangRelease]:
    """Return the supported releases by version, oldest first."""
    entries = load_package_yaml(DATA)
    return {entry["version"]: SglangRelease(**entry) for entry in entries}
