# SPDX-License-Identifier: Apache-2.0
"""Arguments of Edge-LLM's commands and of its Python API for a recipe.

All options are passed explicitly, even with their default values. Option names are from
NVIDIA/TensorRT-Edge-LLM:experimental/builder/cli.py and tensorrt_edgellm/scripts/{export,quantize}.py @0.11.0. Keys of
`llm` in model.json are arguments of LLM (experimental/server/runtime/engine.py@0.11.0). Paths in commands are relative
to the artifact's root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.methods.eagle3 import NAME, Eagle3Options
from trtspec.recipe.resolve import resolve_max_input_len
from trtspec.recipe.schema import Quantization
from trtspec.store.artifact_paths import checkpoint, engine, from_model

QUANTIZE, EXPORT, BUILD = "tensorrt-edgellm-quantize", "tensorrt-edgellm-export", "tensorrt-edgellm-build"
# Calibration reads the dataset of this name; the variable holds its path (quantization/datasets/__init__.py).
DATASET, DATASET_VARIABLE, PROMPTS = "wikitext", "EDGELLM_QUANT_DATASET_WIKITEXT", "calibration.jsonl"
PASS_METHODS = ("dflash", "dspark")  # LLM sets their single step itself
ASSISTANTS = "gemma4_mtp"
# For LLM the method is mtp with a model; the README of experimental/builder excludes requests without drafts.
LLM_METHODS = {ASSISTANTS: "mtp"}


@dataclass(frozen=True)
class DraftingSizes:
    """Numbers of draft tokens in the terms of Edge-LLM's runtime; `tokens` is its num_speculative_tokens.

    The drafter extends each node by `top_k` tokens, `steps` times. The target's engine is built for `verify_size` nodes
    and the draft's engine for `draft_size` nodes, including the root.
    """

    top_k: int
    steps: int
    tokens: int
    verify_size: int
    draft_size: int


def drafting_sizes(context: PlanContext) -> DraftingSizes | None:
    """Return the drafting sizes of a recipe, or None without a drafter.

    The sizes follow engine.py's _resolve_spec_decode_runtime_options. A chain is verified with the token before it. A
    DFlash block includes that token. A DSpark block includes it unless the drafter samples at that position.
    """
    method, shape = context.method_name, context.draft_shape
    if method == "none":
        return None
    size = shape.max_tokens + 1
    if method == "dflash":
        return DraftingSizes(1, 1, size, size, size)
    if method == "dspark":
        return DraftingSizes(1, 1, shape.max_depth, size, shape.max_depth + (not samples_from_anchor(context)))
    options = context.options
    top_k = (options.top_k or 1) if isinstance(options, Eagle3Options) else 1
    return DraftingSizes(top_k, shape.max_depth, shape.max_depth, size, shape.max_depth * top_k)


def samples_from_anchor(context: PlanContext) -> bool:
    """Return whether a DSpark drafter also drafts at the position of the last token (the default of its config)."""
    config = context.sources["draft"].config
    inner = config.get("dspark_config")
    return bool({**config, **(inner if isinstance(inner, dict) else {})}.get("sample_from_anchor", True))


def aux_layers(context: PlanContext) -> tuple[int, ...]:
    """Return the target layers whose inputs an EAGLE-3 drafter reads; empty for other methods."""
    head = context.draft_head.config.get(NAME, {}) if context.draft_head else {}
    return tuple(head.get("aux_layers", ()))


def quantize_arguments(role: str, asked: Quantization, device: str) -> tuple[str, ...]:
    """Return the command line that quantizes the checkpoint of a role, with source checkpoints below sources/."""
    models = {
        "target": ("llm", "--model_dir", staged("target")),
        "draft": ("draft", "--base_model_dir", staged("target"), "--draft_model_dir", staged("draft")),
    }
    argv = [QUANTIZE, *models[role], "--output_dir", checkpoint(role)]
    if asked.weights != "none":
        argv += ["--quantization", asked.weights]
    if asked.kv_cache != "none":
        argv += ["--kv_cache_quantization", asked.kv_cache]
    calibration = ("--text_dataset", DATASET, "--num_samples", str(asked.calibration.samples))
    return (*argv, "--dtype", "fp16", "--device", device, *calibration)


def export_arguments(role: str, method: str, sm: int) -> tuple[str, ...]:
    """Return the command line that exports target or draft to ONNX for compute capability `sm` / 10."""
    target, draft = checkpoint("target"), checkpoint("draft")
    common = ("--dtype", "float16", "--int4-gemm-plugin-version", "2", "--target-sm", str(sm))
    if method == "none":
        return (EXPORT, target, onnx(role), *common)
    if method == "mtp":
        return (EXPORT, target, onnx(role), "--mtp", *common)
    if method == ASSISTANTS:
        parts = ("--components", "thinker,mtp_draft")
        return (EXPORT, target, onnx(role), "--mtp", "--mtp-draft-dir", draft, *parts, *common)
    if role == "target":
        base = "eagle" if method == "eagle3" else method
        return (EXPORT, target, onnx(role), f"--{base}-base", f"--{base}-draft-dir", draft, *common)
    if method == "eagle3":
        return (EXPORT, draft, onnx(role), *common)
    return (EXPORT, target, onnx(role), f"--{method}-draft", f"--{method}-draft-dir", draft, *common)


def exported_roles(context: PlanContext) -> tuple[str, ...]:
    """Return the models that commands export; one command exports a target together with its assistant."""
    return ("target",) if context.method_name == ASSISTANTS else tuple(context.sources)


def build_command(context: PlanContext) -> tuple[str, ...]:
    sizes, method = context.recipe.engine, context.method_name
    words = [BUILD, "--model-dir", checkpoint("target"), "--engine-dir", engine("target"), "--components", "llm"]
    words += ["--dense", "auto", "--int4-gemm-plugin-version", "2"]
    words += ["--max-input-len", str(resolve_max_input_len(sizes)), "--max-kv-cache-capacity", str(sizes.max_seq_len)]
    words += ["--max-batch-size", str(sizes.max_batch_size), "--max-lora-rank", "0", "--tp-size", "1", "--tp-rank", "0"]
    if drafting := drafting_sizes(context):
        words += ["--spec-type", method, "--max-verify-tree-size", str(drafting.verify_size)]
        words += ["--max-draft-tree-size", str(drafting.draft_size)]
        words += ["--draft-model-dir", checkpoint("draft")] if "draft" in context.sources else []
    return (*words, *(() if drafting else ("--spec-type", "none")))


def staged(role: str) -> str:
    """Return the path of a source checkpoint in the working directory of the quantization."""
    return f"sources/{role}"


def onnx(role: str) -> str:
    return f"onnx/{role}"


def model_json(context: PlanContext) -> dict[str, Any]:
    """Return the content of model.json; paths are relative to the served model's directory."""
    sizes, drafting = context.recipe.engine, drafting_sizes(context)
    llm: dict[str, Any] = {
        "model": from_model(checkpoint("target")),
        "max_input_len": resolve_max_input_len(sizes),
        "max_batch_size": sizes.max_batch_size,
        "max_kv_cache_capacity": sizes.max_seq_len,
        # requests can join a running batch only without speculation
        "enable_in_flight_batching": drafting is None,
    }
    if drafting:
        name = LLM_METHODS.get(context.method_name, context.method_name)
        speculation: dict[str, Any] = {"method": name, "num_speculative_tokens": drafting.tokens}
        if "draft" in context.sources:
            speculation["model"] = from_model(checkpoint("draft"))
        llm |= {
            "draft_top_k": drafting.top_k,
            **({} if context.method_name in PASS_METHODS else {"draft_step": drafting.steps}),
            "verify_tree_size": drafting.verify_size,
            "max_verify_tree_size": drafting.verify_size,
            "max_draft_tree_size": drafting.draft_size,
            "speculative_config": speculation,
        }
    always = {"always_drafts": True} if always_drafts(context) else {}
    return {"engines": from_model(engine("target")), "llm": llm, **always}


def always_drafts(context: PlanContext) -> bool:
    """Return whether Edge-LLM cannot run single requests without drafts."""
    return context.method_name == ASSISTANTS
