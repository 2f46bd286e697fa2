# SPDX-License-Identifier: Apache-2.0
"""What each vLLM that a Triton container ships takes; the facts are in versions.yaml, with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

DATA = Path(__file__).with_name("versions.yaml")


@dataclass(frozen=True)
class VllmRelease:
    """One vLLM and the tags (26.07) of the containers that ship it.

    `methods` are vLLM's names by ours; `online` its names of formats, by a recipe's, that it makes while it loads;
    `mtp_models` the model types whose layers for further tokens can draft. With `inferred` it was not read itself.
    """

    version: str
    triton: tuple[str, ...]
    methods: dict[str, str]
    online: dict[str, str]
    mtp_models: tuple[str, ...]
    inferred: bool = False


@cache
def releases() -> dict[str, VllmRelease]:
    """Return the known releases by version, oldest first."""
    entries = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    found = [
        VllmRelease(**{**each, "triton": tuple(each["triton"]), "mtp_models": tuple(each["mtp_models"])})
        for each in entries
    ]
    return {release.version: release for release in found}
