# SPDX-License-Identifier: Apache-2.0
"""Reduce or disable drafting in the LLM API, by the number of running requests and the recent acceptance rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.backends.common.trtllm_versions import VersionSpec, find_version_spec, version_specs
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.recipe.schema import ScheduledLen

SCHEDULE, THRESHOLD = "speculation.schedule", "speculation.acceptance_rate_threshold"
KNOBS = frozenset({"schedule", "acceptance_rate_threshold", "acceptance_window"})
# Default number of steps for the average acceptance rate: a few seconds, so that no single text dominates.
WINDOW_STEPS = 1000
LENGTHS_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/interface.py@00b6d5a2, support_dynamic_draft_len"
GATE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, acceptance_rate_window_size"


def length_fields(context: PlanContext) -> dict[str, Any]:
    """Return the speculative_config fields for a recipe's schedule and threshold, in the version's counting scheme."""
    speculation, api = context.recipe.speculation, find_version_spec(context.version).api
    fields: dict[str, Any] = {}
    if drafting := _drafting(context):
        name = _field(drafting)
        fields[name] = drafting[-1].max_batch if name == "max_concurrency" else _counted(drafting, api.counts)
    if speculation.acceptance_rate_threshold is not None and api.threshold:
        rate, window = api.threshold
        fields |= {rate: speculation.acceptance_rate_threshold, window: speculation.acceptance_window or WINDOW_STEPS}
    return fields


def check_draft_lengths(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield the parts of the schedule and the threshold that the version does not support."""
    if drafting := _drafting(context):
        yield from _check_schedule(context, _field(drafting))
    if context.recipe.speculation.acceptance_rate_threshold is not None:
        yield from _check_threshold(context)


def _check_schedule(context: PlanContext, field: str) -> Iterator[Diagnostic]:
    method, shape = context.recipe.speculation.method, context.draft_shape

    def honours(spec: VersionSpec) -> bool:
        return method in spec.api.methods and field in spec.api.methods[method].lengths

    if not honours(find_version_spec(context.version)):
        message = (
            f"TensorRT-LLM {context.version} does not adapt the draft length of {method} to the number of requests"
        )
        yield Diagnostic(SCHEDULE, "version", message, _remedy("schedule", honours), source=LENGTHS_SOURCE)
    elif shape.max_tokens > shape.max_depth:
        message = "the LLM API can shorten only chains, but the method drafts a tree"
        yield Diagnostic(
            SCHEDULE, "not-supported", message, "remove schedule, or top_k and nodes", source=LENGTHS_SOURCE
        )


def _check_threshold(context: PlanContext) -> Iterator[Diagnostic]:
    if not find_version_spec(context.version).api.threshold:
        message = f"TensorRT-LLM {context.version} does not support acceptance_rate_threshold"
        hint = _remedy("acceptance_rate_threshold", lambda spec: bool(spec.api.threshold))
        yield Diagnostic(THRESHOLD, "version", message, hint, source=GATE_SOURCE)
    elif window := context.recipe.speculation.acceptance_window:
        message = f"the LLM API averages over {window} steps, not over {window} requests"
        yield Diagnostic("speculation.acceptance_window", "steps", message, None, "warning", GATE_SOURCE)


def _remedy(key: str, honours: Any) -> str:
    minors = [minor for minor, spec in version_specs().items() if honours(spec)]
    return f"remove {key}" + (f", or set engine.version: {minors[0]} or later" if minors else "")


def _drafting(context: PlanContext) -> list[ScheduledLen]:
    """Return the part of a schedule that drafts at least one token."""
    return [entry for entry in context.recipe.speculation.schedule if entry.draft_len]


def _field(drafting: list[ScheduledLen]) -> str:
    """Return the field for a schedule: a single length only limits the number of requests."""
    return "max_concurrency" if len(drafting) == 1 else "draft_len_schedule"


def _counted(drafting: list[ScheduledLen], counts: str) -> dict[int, int]:
    """Return draft lengths by number of requests in a version's counting scheme: up to, or from, that number."""
    if counts == "up_to":  # beyond the last entry nothing is drafted
        return {entry.max_batch: entry.draft_len for entry in drafting}
    firsts = [1, *(entry.max_batch + 1 for entry in drafting)]
    return dict(zip(firsts, [*(entry.draft_len for entry in drafting), 0], strict=True))
