# SPDX-License-Identifier: Apache-2.0
"""Backend for SGLang in a Triton Python model: runs unconverted Hugging Face checkpoints."""

from __future__ import annotations

from functools import partial

from trtspec.backends.base import Backend, deferred, methods_of_releases
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.sglang.check import check
from trtspec.backends.sglang.versions import releases

BACKEND = Backend(
    summary="SGLang, in a Python model of Triton",
    methods=lambda: methods_of_releases(each.methods for each in releases().values()),
    parses=frozenset({"draft_target", "ngram", "eagle", "eagle3", "mtp", "gemma4_mtp", "dflash", "dspark", "uno"}),
    memory=partial(plan_source_memory, fraction_of="static"),
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    converts=False,
    stretches=frozenset({"linear", "dynamic"}),
    knobs=frozenset({"schedule", "verify"}),
    package="sglang",
    versions=lambda: list(releases()),
    nearest_versions=True,
    defaults=("trtspec", "model"),
    structured_output="optional",
    check=check,
    serving=deferred(f"{__name__}.artifact:serving"),
)
