# SPDX-License-Identifier: Apache-2.0
"""The features of each vLLM release, and the methods that vLLM runs.

The facts of releases are in versions.yaml, read from their wheels. A method is described by `methods/NAME/vllm.py`.

Quantization on load, "online quantization", needs no calibration: `--quantization fp8` rounds the weights of linear
layers, except the head, to E4M3 with a scale per tensor (https://docs.vllm.ai/en/v0.6.3.post1/quantization/fp8.html);
`fp8_per_channel` has a scale per output channel and token, and appears in the wheels from 0.24 on
(vllm-project/vllm:docs/features/quantization/online.md@01e4fce0; the names are the literals of QuantizationMethods in
vllm/model_executor/layers/quantization/__init__.py).
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
from trtspec.core.versions import KnownReleases, facts_by_release

DATA = Path(__file__).with_name("versions.yaml")
QUANTIZATIONS = {"fp8": "fp8", "fp8_rowwise": "fp8_per_channel"}


@dataclass(frozen=True)
class VllmRelease:
    """A vLLM release and its features.

    Attributes:
        triton: tags (such as 26.07) of the Triton containers that include the release.
        speculative: vLLM's method names.
        fields: fields of SpeculativeConfig.
        rules: values of rejection_sample_method.
        formats: quantizations on load.
        mtp_models, mtp_architectures: model types and architectures whose MTP layers can draft.
        assistants: model types of Gemma 4 assistants.
        eagle3_models: substrings of a model type, one of which must occur in an EAGLE-3 target's; empty allows any
            type.
        eagle3_targets: architectures that provide hidden states to EAGLE-3.
        pipeline_targets: architectures that also do so with pipeline parallelism.
        heads: architectures of drafters; for those in `biased_heads`, `fc` may have a bias.
        speculators: supported types of the speculators format.
        not_in_v2: methods that the V2 model runner does not support.
        does: names of further behaviors.
    """

    version: str
    triton: tuple[str, ...]
    speculative: frozenset[str]
    fields: frozenset[str]
    rules: frozenset[str]
    formats: frozenset[str]
    mtp_models: frozenset[str]
    mtp_architectures: frozenset[str]
    assistants: frozenset[str]
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
        return {ours: theirs.name for ours, theirs in methods().items() if theirs.name in self.speculative}

    @property
    def online(self) -> dict[str, str]:
        """Return vLLM's names of the formats to which it quantizes on load, by the recipe's names."""
        return {ours: theirs for ours, theirs in QUANTIZATIONS.items() if theirs in self.formats}


@dataclass(frozen=True)
class VllmMethod:
    """A method in vLLM's terms, registered as `METHOD` of `methods/NAME/vllm.py`.

    Attributes:
        name: `method` in vLLM's speculative_config; a release supports the method if it has that name.
        fields: returns the method's options as fields of speculative_config.
        in_parallel: the draft model drafts all tokens in one pass (parallel_drafting).
        fixed_length: the proposer asserts the full draft length, or allocates a block of it once.
        maps_vocabularies: releases with use_heterogeneous_vocab support a draft with another vocabulary.
        check: yields the problems of a recipe that concern this method alone.
    """

    name: str
    fields: Callable[[Any], Mapping[str, Any]] = lambda options: {}
    in_parallel: bool = False
    fixed_length: bool = False
    maps_vocabularies: bool = False
    check: Callable[[PlanContext, VllmRelease], Iterable[Diagnostic]] = lambda context, release: ()


def methods() -> dict[str, VllmMethod]:
    return discover_all("trtspec.methods", "METHOD", "vllm")


FACTS = tuple(VllmRelease.__dataclass_fields__)[2:]


@cache
def releases() -> dict[str, VllmRelease]:
    """Return the known releases by version, oldest first; looking up another version returns the nearest release."""
    document = load_package_yaml(DATA)
    found, tags = facts_by_release(document, FACTS), document["containers"]
    return KnownReleases(
        {version: VllmRelease(version, tuple(tags.get(version, ())), **facts) for version, facts in found.items()}
    )


def having(test: Callable[[VllmRelease], bool]) -> str:
    """Return a hint with the first and the last release for which the test is true, or ""."""
    found = [version for version, release in releases().items() if test(release)]
    span = " to ".join(dict.fromkeys([found[0], found[-1]])) if found else ""
    return f"supported by vLLM {span}: see engine.version" if found else ""


def cite(release: VllmRelease, path: str = "config/speculative.py") -> str:
    """Return the citation of a source file of a release, as used in diagnostics."""
    return f"vllm-project/vllm:vllm/{path}@v{release.version}"
