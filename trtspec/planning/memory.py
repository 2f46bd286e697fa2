# SPDX-License-Identifier: Apache-2.0
"""Memory checks with the backend's memory plan: a recipe against its GPUs, and the largest batch that fits.

Backends that report memory problems themselves are not checked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.backends.base import Backend, find_backend
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic, Severity
from trtspec.core.gpus import GPUS

MOST_TEXTS = 4096
CODE = "memory"
CPU = "cpu"  # device id for this machine's memory


def largest_batch(context: PlanContext) -> int | None:
    """Return the largest `max_batch_size` that fits, 0 if none fits, or None if the memory is unknown.

    Every text is assumed to have `max_seq_len` tokens, as in `plan`.
    """
    if not (gpus := find_backend(context.choice.name).memory(context)) or not all(gpu.limit_bytes for gpu in gpus):
        return None
    fits, too_many = 0, 1
    while too_many <= MOST_TEXTS and _holds(context, too_many):
        fits, too_many = too_many, 2 * too_many
    too_many = min(too_many, MOST_TEXTS + 1)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if _holds(context, middle) else (fits, middle)
    return fits


def _holds(context: PlanContext, texts: int) -> bool:
    larger = replace(context, recipe=context.recipe.with_engine(max_batch_size=texts, max_num_tokens=None))
    return all(gpu.total_bytes <= gpu.limit_bytes for gpu in find_backend(context.choice.name).memory(larger))


def check_memory(context: PlanContext, backend: Backend) -> Iterator[Diagnostic]:
    """Yield an error if the weights, or the weights and one text, do not fit; a warning if a full batch does not.

    On a CPU all problems are warnings, because the recipe may be served on another machine. If the memory of the device
    or of the model is unknown, nothing is yielded.
    """
    plans = backend.memory(context)
    full = _fullest(plans)
    if full is None:
        if not plans:
            yield from _check_weights(context)
        return
    single = _fullest(backend.memory(replace(context, recipe=context.recipe.with_engine(max_batch_size=1))))
    engine = context.recipe.engine
    if single is None:
        fits = largest_batch(context)
        room = f"memory for {fits} of" if fits else "too little memory for"
        message = f"{_device(full)}: there is {room} max_batch_size {engine.max_batch_size} texts of"
        message += f" {engine.max_seq_len} tokens at the same time; requests beyond that wait"
        yield Diagnostic("engine.max_batch_size", CODE, message, severity="warning")
        return
    without_cache = single.total_bytes - single.kv_cache_bytes
    severity: Severity = "warning" if single.id == CPU else "error"
    if without_cache > single.limit_bytes:
        message = f"{_device(single)}: weights, draft and activations take about {_gib(without_cache)}"
        hint = "use more GPUs (target.parallel.tensor), quantize the model, or choose a larger GPU"
        path = "engine.gpu"
    else:
        message = f"{_device(single)}: the model and the KV cache of one text of {engine.max_seq_len}"
        message += f" tokens take about {_gib(single.total_bytes)}"
        hint = "lower engine.max_seq_len, set kv_cache: fp8 if the engine supports it, or use more GPUs"
        path = "engine.max_seq_len"
    message += f"; {_gib(single.limit_bytes)} are available{_reserved(context, single)}"
    yield Diagnostic(path, CODE, message, None if single.id == CPU else hint, severity)


def _check_weights(context: PlanContext) -> Iterator[Diagnostic]:
    """Compare the size of the weight files with the GPU's memory, for models whose config lacks the other sizes."""
    gpu, parallel = GPUS.get((context.recipe.engine.gpu or "").lower()), context.recipe.target.parallel
    weights = context.sources["target"].nbytes // parallel.ranks
    if gpu and context.recipe.engine.device != CPU and weights > gpu.memory_bytes:
        message = f"the weights alone take {_gib(weights)} of each GPU, which has {_gib(gpu.memory_bytes)}"
        yield Diagnostic("engine.gpu", CODE, message, "use more GPUs (target.parallel.tensor)")


def _fullest(plans: list[MemoryPlan]) -> MemoryPlan | None:
    """Return the plan that exceeds its limit by the largest factor, or None if all plans with a limit fit."""
    over = [plan for plan in plans if plan.limit_bytes and plan.total_bytes > plan.limit_bytes]
    return max(over, key=lambda plan: plan.total_bytes / plan.limit_bytes, default=None)


def _device(plan: MemoryPlan) -> str:
    return "this machine" if plan.id == CPU else f"GPU {plan.id}"


def _reserved(context: PlanContext, plan: MemoryPlan) -> str:
    """Return the text that explains a limit below the GPU's memory; "" otherwise."""
    gpu, fraction = GPUS.get((context.recipe.engine.gpu or "").lower()), context.recipe.serving.kv_cache_fraction
    if gpu is None or plan.id == CPU or plan.limit_bytes >= gpu.memory_bytes:
        return ""
    return f" of {_gib(gpu.memory_bytes)} (serving.kv_cache_fraction {fraction:g})"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
