# SPDX-License-Identifier: Apache-2.0
"""SGLang in a Python model of Triton: runs unconverted Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from trtspec.backends.base import ArtifactPlan, Backend
from trtspec.backends.common.memory import plan_source_memory, static_memory_limit
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.check import check
from trtspec.backends.sglang.versions import releases

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader


def _methods() -> Mapping[str, str]:
    """Return the union over releases; `check` rejects a method that the chosen release lacks."""
    return {"none": ""} | {name: theirs for each in releases().values() for name, theirs in each.methods.items()}


def _plan(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    from trtspec.backends.sglang.artifact import plan_artifact

    return plan_artifact(context, reader)


def _serving() -> ServingHooks:
    from trtspec.backends.serving import ServingHooks
    from trtspec.backends.sglang.artifact import MODELS, alone, check_installed

    return ServingHooks(
        check_machine=check_installed,
        models=MODELS,
        requirements=lambda version: (f"sglang=={version}",),
        alone=alone,
    )


BACKEND = Backend(
    summary="SGLang, in a Python model of Triton",
    methods=_methods,
    parses=frozenset({"draft_target", "ngram", "eagle", "eagle3", "mtp", "dflash", "dspark"}),
    memory=partial(plan_source_memory, limit=static_memory_limit),
    plan=_plan,
    converts=False,
    stretches=frozenset({"linear", "dynamic"}),
    knobs=frozenset({"schedule", "verify"}),
    package="sglang",
    versions=lambda: list(releases()),
    check=check,
    serving=_serving,
)
