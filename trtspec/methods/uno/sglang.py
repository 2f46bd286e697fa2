# SPDX-License-Identifier: Apache-2.0
"""UNO in SGLang, from 0.5.20 on.

SGLang's names, for draft_len tokens on a path: F = draft_len + 1 is the width of the pass that drafts, K the tree's
top_k, and Q the number of verified tokens with the root. A chain has Q = F, and its depth in SGLang's terms is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.common.checks import STRUCTURED_OUTPUT
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import SglangMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import DraftShape
from trtspec.methods.uno import OPTION, TRAINED, UnoOptions, adapter_files, check_adapter, read_adapter
from trtspec.store.artifact_paths import checkpoint, from_model

SRT = "sgl-project/sglang:python/sglang/srt"
HOOK = f"{SRT}/arg_groups/speculative_hook.py@v0.5.23, _handle_uno"
REQUESTS = f"{SRT}/speculative/uno_validation.py@v0.5.23"
ATTENTION = f"{SRT}/layers/attention/attention_registry.py@v0.5.23"
LORA = f"{SRT}/lora/lora_manager.py@v0.5.23, validate_new_adapter"
MODULES_SOURCE = f"{SRT}/utils/common.py@v0.5.23, SUPPORTED_LORA_TARGET_MODULES"
PLACE = checkpoint("adapter")
MODULES = frozenset(
    {"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "wq_b", "wk"}
    | {"weights_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj", "embed_tokens", "lm_head"}
    | {"qkvr", "wo_ud"}
)
MAX_SLOTS = 2048  # of Q * K
FA3_ARCHITECTURES = range(80, 91)  # compute capabilities with the attention backend fa3, the only one for UNO


def _fields(options: UnoOptions, shape: DraftShape) -> Mapping[str, Any]:
    chain = {} if options.top_k else {"speculative_num_steps": 1}
    return {**chain, "uno_lora_path": from_model(PLACE), "attention_backend": "fa3"}


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if not isinstance(context.options, UnoOptions):
        return
    yield from _check_adapter(context, context.options)
    yield from _check_tree(context.options, context.draft_shape)
    if context.recipe.target.parallel.tensor > 1:
        yield Diagnostic("target.parallel.tensor", "parallel", "SGLang runs UNO on one GPU", "set it to 1", source=HOOK)
    if context.recipe.serving.structured_output:
        message = "SGLang does not support structured output with uno"
        yield Diagnostic(STRUCTURED_OUTPUT, "not-supported", message, "remove structured_output", source=REQUESTS)
    if context.gpu and context.gpu.sm not in FA3_ARCHITECTURES:
        message = f"SGLang runs UNO with FlashAttention 3 only, which {context.gpu.name} does not have"
        yield Diagnostic("engine.gpu", "gpu", message, "use a Hopper GPU, such as h200", source=ATTENTION)


def _check_adapter(context: PlanContext, options: UnoOptions) -> Iterator[Diagnostic]:
    if not options.adapter:
        yield Diagnostic(OPTION, "missing", "uno drafts with a LoRA adapter of the target", TRAINED, source=HOOK)
        return
    try:
        config = read_adapter(Path(options.adapter))
    except CheckpointError as error:
        message = f"{error.message}: {error.where}" if error.where else error.message
        yield Diagnostic(OPTION, "unreadable", message, error.hint or TRAINED)
        return
    stored = context.sources["target"].config.get("_name_or_path")
    yield from check_adapter(config, {context.recipe.target.model, str(stored or "")})
    if config.get("use_dora"):
        yield Diagnostic(OPTION, "dora", "SGLang does not load DoRA adapters", TRAINED, source=LORA)
    modules = config.get("target_modules")
    unknown = {str(name).rsplit(".", 1)[-1] for name in modules} - MODULES if isinstance(modules, list) else set()
    if unknown:
        message = f"target_modules that SGLang does not list: {', '.join(sorted(unknown))[:200]}"
        hint = "SGLang may refuse to load the adapter"
        yield Diagnostic(OPTION, "unknown-modules", message, hint, severity="warning", source=MODULES_SOURCE)


def _check_tree(options: UnoOptions, shape: DraftShape) -> Iterator[Diagnostic]:
    """Yield an error for a tree that SGLang cannot build from the candidates of each position."""
    if not options.top_k or not options.nodes:
        return
    least, most = shape.max_depth, max_nodes(options.top_k, shape.max_depth)
    if not least <= options.nodes <= most:
        message = f"a tree of {shape.max_depth} levels and top_k {options.top_k} has {least} to {most} nodes"
        hint = f"set nodes to a value from {least} to {most}" if least <= most else "use a smaller top_k or draft_len"
        yield Diagnostic("speculation.options.nodes", "out-of-range", message, hint, source=HOOK)


def max_nodes(top_k: int, draft_len: int) -> int:
    """Return the largest tree, without its root, that SGLang verifies."""
    capacity: int = sum(top_k**level for level in range(1, draft_len + 1))
    stored = top_k * (draft_len - 1) + 1  # tokens that SGLang's list of parents has room for
    return min(capacity, stored, MAX_SLOTS // top_k - 1, 127)


METHOD = SglangMethod(
    "UNO",
    _fields,
    tree_width=lambda options: options.top_k or 1,
    copies=lambda options: {PLACE: adapter_files(options)},
    check=_check,
)
