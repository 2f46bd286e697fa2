# SPDX-License-Identifier: Apache-2.0
"""Backend for the torch engine behind Triton's Python backend: runs converted checkpoints on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from trtspec.backends.base import AutoSelection, Backend, deferred
from trtspec.backends.common.checks import DRAFT, check_confidence_table, check_extra, unused
from trtspec.backends.common.memory import plan_memory
from trtspec.backends.context import PlanContext
from trtspec.backends.serving import ServingHooks
from trtspec.checkpoints.previews import fetch_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.translation import token_ids
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.core.installation import DoctorCheck, check_package
from trtspec.core.registry import extension_names
from trtspec.engine.settings import EXTENDED_ROPE_KINDS, EngineSettings
from trtspec.methods.dflash import detect_kind, special_keys
from trtspec.recipe.schema import KNOBS

PACKAGES = ("torch", "transformers", "tokenizers")


def probes() -> list[DoctorCheck]:
    """Return checks of packages, GPUs and kernels; missing GPUs or kernels pass, because they affect only the speed."""
    from trtspec.kernels.build import (  # imports the compilers' flags, which only this command needs
        describe_library,
        find_libraries,
        loads,
    )

    packages = [check_package(package, "pip install 'trtspec[embedded]'") for package in PACKAGES]
    devices = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))  # read from the driver, without CUDA
    gpus = f"{devices} NVIDIA GPUs" if devices else "none; the torch engine uses the CPU"
    compiled = next(filter(loads, find_libraries()), None)
    missing = "not compiled; torch verifies drafts (trtspec plugins build)"
    kernels = describe_library(compiled) if compiled else missing
    return [*packages, DoctorCheck("gpu", True, gpus), DoctorCheck("kernels", True, kernels)]


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield warnings for keys without effect and for lengths that change the output, and errors for the drafter."""
    engine, serving = context.recipe.engine, context.recipe.serving
    yield from check_extra(context, "the torch engine")
    yield from check_confidence_table(context, "the torch engine")
    for key in sorted(engine.build.model_fields_set):
        message = f"{key} applies to trtllm-build, which the torch engine does not use"
        yield unused(f"engine.build.{key}", message)
    yield from _check_longrope(context)
    if context.head and detect_kind(context.head.source) and (keys := special_keys(context.head.source)):
        message = f"the torch engine does not support these keys of the draft's config.json: {', '.join(keys)}"
        yield Diagnostic(DRAFT, "not-supported", message, "choose another engine.backend")
    if context.translates:
        yield _check_vocabulary(context)
    if serving.fast_logits:
        yield unused("serving.fast_logits", "the torch engine does not transfer logits between GPUs")


def _check_vocabulary(context: PlanContext) -> Diagnostic:
    """Return a diagnostic with the share of the target's tokens that the draft can draft; an error if it is zero."""
    sources = [context.sources[role] for role in ("target", "draft")]
    message = "draft and target have different tokenizers"
    try:
        for source in sources:
            fetch_tokenizer(source)
        ours, theirs = (token_ids(Tokenizer(source.root)) for source in sources)
    except CheckpointError as error:
        return Diagnostic(DRAFT, "vocabulary", f"{message}, and in {error.where} {error.message}", error.hint)
    shared = len(ours.keys() & theirs.keys())
    if not shared:
        message += " without a common token: nothing can be drafted"
        return Diagnostic(DRAFT, "vocabulary", message, "choose another draft")
    share = f"{shared:,} of the target's {len(ours):,} tokens ({shared / len(ours):.1%})"
    message += f": the draft can draft only {share}"
    hint = "a draft of the target's family is accepted more often"
    return Diagnostic(DRAFT, "vocabulary", message, hint, "warning")


def _check_longrope(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning if LongRoPE's factors for long texts would also be applied to short texts."""
    longest = context.recipe.engine.max_seq_len
    for path, config in (("target", context.target_config), ("speculation.draft", context.draft_config)):
        scaling = config.rope_scaling if config else None
        if scaling and scaling.kind == "longrope" and longest > (most := scaling.original_max_position):
            message = f"texts beyond {most} tokens need LongRoPE's long factors, and an engine has one set for all"
            message += " texts:"
            message += f" with max_seq_len {longest} short texts use the long factors too"
            hint = f"engine.max_seq_len: {most}, if no text is longer"
            yield Diagnostic(f"{path}.model", "rope", message, hint, "warning")


BACKEND = Backend(
    summary="torch on this machine's CPU or GPU",
    # methods with a drafter for the torch engine, found without importing their modules and torch
    methods=lambda: {name: name for name in extension_names("trtspec.methods", "drafter")},
    memory=plan_memory,
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    in_process=True,
    keeps_windows=True,
    stretches=EXTENDED_ROPE_KINDS,
    knobs=frozenset({each.name for each in fields(EngineSettings)} & {*KNOBS}),
    warms=True,
    maps_vocabularies=lambda version, method: method == "draft_target",
    defaults=("trtspec", "nvidia", "model"),
    edits_logits=True,
    structured_output="always",
    check=check,
    serving=lambda: ServingHooks(extra="embedded"),
    auto=AutoSelection(rank=99, offer=lambda method, gpu: (True, "")),
    probes=probes,
)
