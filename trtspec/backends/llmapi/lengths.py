# SPDX-License-Identifier: Apache-2.0
"""When the LLM API drafts less or not at all: by how many requests run together, and by what was accepted of late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.backends.common.trtllm_versions import VersionSpec, version_spec_of, version_specs
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.recipe.schema import ScheduledLen

SCHEDULE, THRESHOLD = "speculation.schedule", "speculation.acceptance_rate_threshold"
KNOBS = frozenset({"schedule", "acceptance_rate_threshold", "acceptance_window"})
# Steps over which the accepted part is averaged unless the recipe says: some seconds, so that no single text decides.
WINDOW_STEPS = 1000
LENGTHS_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/interface.py@00b6d5a2, support_dynamic_draft_len"
GATE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, acceptance_rate_window_size"


def length_fields(context: PlanContext) -> dict[str, Any]:
    """Return the fields of speculative_config for a recipe's schedule and threshold, in the version's own counting."""
    asked, api = context.recipe.speculation, version_spec_of(context.version).api
    fields: dict[str, Any] = {}
    if drafting := _drafting(context):
        name = _field(drafting)
        fields[name] = drafting[-1].max_batch if name == "max_concurrency" else _counted(drafting, api.counts)
    if asked.acceptance_rate_threshold is not None and api.threshold:
        rate, window = api.threshold
        fields |= {rate: asked.acceptance_rate_threshold, window: asked.acceptance_window or WINDOW_STEPS}
    return fields


def about_lengths(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield what the version cannot do of the schedule and the threshold."""
    if drafting := _drafting(context):
        yield from _about_schedule(context, _field(drafting))
    if context.recipe.speculation.acceptance_rate_threshold is not None:
        yield from _about_threshold(context)


def _about_schedule(context: PlanContext, field: str) -> Iterator[Diagnostic]:
    method, shape = context.recipe.speculation.method, context.draft_shape

    def honours(spec: VersionSpec) -> bool:
        return method in spec.api.methods and field in spec.api.methods[method].lengths

    if not honours(version_spec_of(context.version)):
        message = f"TensorRT-LLM {context.version} drafts the same length with {method} however many requests run"
        yield Diagnostic(SCHEDULE, "version", message, _remedy("schedule", honours), source=LENGTHS_SOURCE)
    elif shape.max_tokens > shape.max_depth:
        message = "the LLM API shortens chains alone, and this drafts a tree"
        yield Diagnostic(
            SCHEDULE, "not-supported", message, "remove schedule, or top_k and nodes", source=LENGTHS_SOURCE
        )


def _about_threshold(context: PlanContext) -> Iterator[Diagnostic]:
    if not version_spec_of(context.version).api.threshold:
        message = f"TensorRT-LLM {context.version} knows no acceptance rate below which it stops drafting"
        hint = _remedy("acceptance_rate_threshold", lambda spec: bool(spec.api.threshold))
        yield Diagnostic(THRESHOLD, "version", message, hint, source=GATE_SOURCE)
    elif window := context.recipe.speculation.acceptance_window:
        message = f"the LLM API averages over {window} steps, not over so many requests"
        yield Diagnostic("speculation.acceptance_window", "steps", message, None, "warning", GATE_SOURCE)


def _remedy(key: str, honours: Any) -> str:
    minors = [minor for minor, spec in version_specs().items() if honours(spec)]
    return f"remove {key}" + (f", or set engine.version: {minors[0]} or later" if minors else "")


def _drafting(context: PlanContext) -> list[ScheduledLen]:
    """Return a schedule up to where nothing is drafted any more."""
    return [entry for entry in context.recipe.speculation.schedule if entry.draft_len]


def _field(drafting: list[ScheduledLen]) -> str:
    """Return the field for a schedule: one length alone is no more than a limit of requests."""
    return "max_concurrency" if len(drafting) == 1 else "draft_len_schedule"


def _counted(drafting: list[ScheduledLen], counts: str) -> dict[int, int]:
    """Return draft lengths by requests, as a version counts them: up to so many, or from so many on."""
    if counts == "up_to":  # behind the last one nothing is drafted
        return {entry.max_batch: entry.draft_len for entry in drafting}
    firsts = [1, *(entry.max_batch + 1 for entry in drafting)]
    return dict(zip(firsts, [*(entry.draft_len for entry in drafting), 0], strict=True))
