# SPDX-License-Identifier: Apache-2.0
"""vLLM behind Triton's vLLM backend: runs unconverted Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from trtspec.backends.base import ArtifactPlan, Backend
from trtspec.backends.common.memory import plan_source_memory, total_memory_limit
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.check import check
from trtspec.backends.vllm.drafters import supports_heterogeneous_vocab
from trtspec.backends.vllm.environment import probe_vllm
from trtspec.backends.vllm.versions import releases

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader


def _methods() -> Mapping[str, str]:
    """Return the union over releases; `check` rejects a method that the chosen release lacks."""
    return {"none": ""} | {name: theirs for each in releases().values() for name, theirs in each.methods.items()}


def _versions() -> list[str]:
    """Return the releases; those in a Triton container are last, so that one of them is the default."""
    return sorted(releases(), key=lambda version: bool(releases()[version].triton))


def _plan(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    from trtspec.backends.vllm.artifact import plan_artifact

    return plan_artifact(context, reader)


def _serving() -> ServingHooks:
    from trtspec.backends.vllm.artifact import SERVING

    return SERVING


BACKEND = Backend(
    summary="vLLM, behind Triton's vLLM backend",
    methods=_methods,
    runs=frozenset({"none", "draft_target", "ngram", "eagle3", "suffix"}),
    parses=frozenset({"medusa", "eagle", "pard", "p_eagle", "dflash", "dspark", "mtp"}),
    memory=partial(plan_source_memory, limit=total_memory_limit),
    plan=_plan,
    converts=False,
    stretches=frozenset({"linear", "dynamic"}),
    maps_vocabularies=supports_heterogeneous_vocab,
    knobs=frozenset({"schedule", "verify"}),
    package="vllm",
    versions=_versions,
    check=check,
    serving=_serving,
    devices=("gpu", "cpu"),
    dtypes=("auto", "float16", "bfloat16", "float32"),
    probes=probe_vllm,
)
