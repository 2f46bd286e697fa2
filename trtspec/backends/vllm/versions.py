# SPDX-License-Identifier: Apache-2.0
"""The features of each vLLM release; the facts are in versions.yaml, read from the releases' wheels.

Quantization on load, "online quantization", needs no calibration: `--quantization fp8` rounds the weights of linear
layers, except the head, to E4M3 with a scale per tensor (https://docs.vllm.ai/en/v0.6.3.post1/quantization/fp8.html);
`fp8_per_channel` has a scale per output channel and token, and appears in the wheels from 0.24 on
(vllm-project/vllm:docs/features/quantization/online.md@01e4fce0; the names are the literals of QuantizationMethods in
vllm/model_executor/layers/quantization/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.paths import load_package_yaml
from trtspec.core.versions import KnownReleases

DATA = Path(__file__).with_name("versions.yaml")
METHODS = {
    "draft_target": "draft_model",
    "pard": "draft_model",
    "ngram": "ngram",
    "suffix": "suffix",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "p_eagle": "eagle3",
    "mtp": "mtp",
    "dflash": "dflash",
    "dspark": "dspark",
}
PARALLEL = ("pard", "p_eagle")  # with parallel_drafting
QUANTIZATIONS = {"fp8": "fp8", "fp8_rowwise": "fp8_per_channel"}


@dataclass(frozen=True)
class VllmRelease:
    """One release of vLLM and the tags (26.07) of the Triton containers that ship it.

    `speculative` are the names of methods, `fields` the fields of SpeculativeConfig, `rules` the values of
    rejection_sample_method, and `formats` the quantizations on load. `mtp_models` and `mtp_architectures` are model
    types and architectures whose MTP layers can draft. `eagle3_models` are parts of model types, one of which must
    occur in an EAGLE-3 target's (if empty, any type is supported). `eagle3_targets` are the architectures that provide
    hidden states to EAGLE-3, and `pipeline_targets` those that also do so with pipeline parallelism. `heads` are the
    architectures of drafters, `biased_heads` those whose `fc` has a bias, and `speculators` the supported types of the
    speculators format. `not_in_v2` are the methods that its V2 model runner lacks, and `does` further behaviours.
    """

    version: str
    triton: tuple[str, ...]
    speculative: frozenset[str]
    fields: frozenset[str]
    rules: frozenset[str]
    formats: frozenset[str]
    mtp_models: frozenset[str]
    mtp_architectures: frozenset[str]
    eagle3_models: frozenset[str]
    eagle3_targets: frozenset[str]
    pipeline_targets: frozenset[str]
    heads: frozenset[str]
    biased_heads: frozenset[str]
    speculators: frozenset[str]
    not_in_v2: frozenset[str]
    does: frozenset[str]

    @property
    def methods(self) -> dict[str, str]:
        """Return vLLM's names of its methods, by trtspec's method names."""
        return {ours: theirs for ours, theirs in METHODS.items() if theirs in self.speculative}

    @property
    def online(self) -> dict[str, str]:
        """Return vLLM's names of the formats to which it quantizes on load, by the recipe's names."""
        return {ours: theirs for ours, theirs in QUANTIZATIONS.items() if theirs in self.formats}


FACTS = tuple(VllmRelease.__dataclass_fields__)[2:]


def load() -> dict[str, dict[str, Any]]:
    """Return versions.yaml: containers by release, and for each fact its names by the releases that have them."""
    document: dict[str, dict[str, Any]] = load_package_yaml(DATA)
    return document


@cache
def releases() -> dict[str, VllmRelease]:
    """Return the known releases by version, oldest first; other versions have the nearest one's facts."""
    document = load()
    versions = list(document["releases"])
    found = {version: {fact: frozenset[str]() for fact in FACTS} for version in versions}
    for fact in FACTS:
        for span, names in document[fact].items():
            for version in _within(span, versions):
                found[version][fact] |= frozenset(names)
    triton = {version: tuple(tags) for version, tags in document["releases"].items()}
    return KnownReleases({version: VllmRelease(version, triton[version], **found[version]) for version in versions})


def _within(span: str, versions: list[str]) -> list[str]:
    """Return the releases from the first to the last of "0.20.0..0.24.0", or to the newest of "0.20.0.."."""
    first, last = span.split("..")
    return versions[versions.index(first) : versions.index(last) + 1 if last else None]


def having(test: Callable[[VllmRelease], bool]) -> str:
    """Return a hint with the releases for which the test holds, or ""."""
    found = [version for version, release in releases().items() if test(release)]
    span = " to ".join(dict.fromkeys([found[0], found[-1]])) if found else ""
    return f"supported by vLLM {span}: see engine.version" if found else ""


def cite(release: VllmRelease, path: str = "config/speculative.py") -> str:
    """Return a source file of a release, in the format of diagnostics."""
    return f"vllm-project/vllm:vllm/{path}@v{release.version}"
