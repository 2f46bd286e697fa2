# SPDX-License-Identifier: Apache-2.0
"""vLLM behind Triton's vLLM backend: runs unconverted Hugging Face checkpoints."""

from __future__ import annotations

from functools import partial

from trtspec.backends.base import Backend, deferred, methods_of_releases
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.vllm.check import check
from trtspec.backends.vllm.drafters import supports_heterogeneous_vocab
from trtspec.backends.vllm.environment import probe_vllm
from trtspec.backends.vllm.versions import releases


def _versions() -> list[str]:
    """Return the releases; those in a Triton container are last, so that one of them is the default."""
    return sorted(releases(), key=lambda version: bool(releases()[version].triton))


BACKEND = Backend(
    summary="vLLM, behind Triton's vLLM backend",
    methods=lambda: methods_of_releases(each.methods for each in releases().values()),
    runs=frozenset({"none", "draft_target", "ngram", "eagle3", "suffix"}),
    parses=frozenset({"medusa", "eagle", "pard", "p_eagle", "dflash", "dspark", "mtp"}),
    memory=partial(plan_source_memory, fraction_of="all"),
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    converts=False,
    stretches=frozenset({"linear", "dynamic"}),
    maps_vocabularies=supports_heterogeneous_vocab,
    knobs=frozenset({"schedule", "verify"}),
    package="vllm",
    versions=_versions,
    check=check,
    serving=deferred(f"{__name__}.artifact:serving"),
    devices=("gpu", "cpu"),
    dtypes=("auto", "float16", "bfloat16", "float32"),
    probes=probe_vllm,
)
