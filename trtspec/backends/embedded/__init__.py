# SPDX-License-Identifier: Apache-2.0
"""The torch engine behind Triton's Python backend: runs converted checkpoints on any machine's CPU or GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.base import AutoSelection, Backend, BackendOffer
from trtspec.backends.context import PlanContext
from trtspec.backends.embedded.check import check
from trtspec.backends.embedded.memory import memory
from trtspec.backends.embedded.probes import probes
from trtspec.core.registry import extension_names
from trtspec.engine.settings import EXTENDED_ROPE_KINDS

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader


def _methods() -> Mapping[str, str]:
    """Return the methods for which the torch engine has a drafter, without importing their modules and torch."""
    return {name: name for name in extension_names("trtspec.methods", "drafter")}


def _plan(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    from trtspec.backends.embedded.plan import plan_artifact

    return plan_artifact(context, reader)


def _serving() -> ServingHooks:
    from trtspec.backends.serving import ServingHooks

    return ServingHooks(extra="embedded")


BACKEND = Backend(
    summary="torch on this machine's CPU or GPU",
    methods=_methods,
    memory=memory,
    plan=_plan,
    in_process=True,
    keeps_windows=True,
    stretches=EXTENDED_ROPE_KINDS,
    knobs=frozenset({"schedule", "confidence", "verify"}),
    warms=True,
    maps_vocabularies=lambda version, method: method == "draft_target",
    defaults=("trtspec", "nvidia", "model"),
    check=check,
    serving=_serving,
    auto=AutoSelection(rank=99, offer=lambda method, gpu: BackendOffer(takes=True, why="")),
    probes=probes,
)
