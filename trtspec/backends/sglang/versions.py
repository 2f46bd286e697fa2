# SPDX-License-Identifier: Apache-2.0
"""What each SGLang takes; the facts are in versions.yaml, with their source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trtspec.core.package_data import read_own

DATA = Path(__file__).with_name("versions.yaml")

# SGLang's names of algorithms by ours. UNO is left out: it drafts with a LoRA adapter, which no method of ours has.
# Suffix decoding too: NGRAM drafts a fixed number of tokens, whatever the length and the counts of a match say.
ALGORITHMS = {
    "draft_target": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
# of these the checkpoint's class decides whether a release has it
OF_NETS = ("eagle", "eagle3", "dflash", "dspark")


@dataclass(frozen=True)
class SglangRelease:
    """One SGLang: `nets` that can draft by method, targets that draft themselves, and what is known of verification.

    `schedule` tells whether the length of drafts can follow the number of requests, `block` whether drafts can be
    verified as a block.
    """

    version: str
    nets: dict[str, list[str]]
    mtp_targets: list[str]
    schedule: bool
    block: bool

    @property
    def methods(self) -> dict[str, str]:
        """Return SGLang's names of the algorithms that this release has, by ours."""
        return {name: theirs for name, theirs in ALGORITHMS.items() if name not in OF_NETS or name in self.nets}


@cache
def releases() -> dict[str, SglangRelease]:
    """Return the known releases by version, oldest first."""
    entries = read_own(DATA)
    return {entry["version"]: SglangRelease(**entry) for entry in entries}
