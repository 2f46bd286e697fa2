# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from being built or served by its release of Edge-LLM, and what that will not do as asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtspec.backends.common.sources import check_num_tokens, check_placement, models_of
from trtspec.backends.context import PlanContext
from trtspec.backends.edge_llm.arguments import drafting_of
from trtspec.backends.edge_llm.versions import EdgeRelease, releases
from trtspec.checkpoints.quant.quant_config import source_format
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.gpus import GPUS
from trtspec.methods.eagle3.head import NAME
from trtspec.methods.mtp import count_layers

METHOD, OPTIONS = "speculation.method", "speculation.options"
PACKAGE = "NVIDIA/TensorRT-Edge-LLM"
CLI = f"{PACKAGE}:experimental/builder/cli.py@0.11.0"
ENGINE = f"{PACKAGE}:experimental/server/runtime/engine.py@0.11.0"
QUANTIZER = f"{PACKAGE}:tensorrt_edgellm/scripts/quantize.py@0.11.0"
EXPORTER = f"{PACKAGE}:tensorrt_edgellm/models/default/modeling_default.py@0.11.0"
EAGLE3 = f"{PACKAGE}:experimental/builder/models/eagle3/configuration.py@0.11.0"
ORIN_SM = 87  # FP16, INT8 and INT4 alone: the support matrix of 0.11
BLOCK_METHODS = ("dflash", "dspark")


def check(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield everything Edge-LLM has against a recipe."""
    release, method = releases()[context.version], context.recipe.speculation.method
    if method != "none" and method not in release.methods:
        return  # `check` says which backends run it
    yield from _about_gpu(context, release)
    yield from _about_models(context, release)
    yield from _about_drafting(context)
    yield from _about_eagle3(context)
    yield from _about_quantization(context, release)
    yield from _about_parallel(context)
    yield from check_placement(context)
    yield from check_num_tokens(context)
    yield from _about_engine(context)


def _about_gpu(context: PlanContext, release: EdgeRelease) -> Iterator[Diagnostic]:
    asked = context.recipe.engine.gpu
    if asked is None:
        hint = "set engine.gpu, as rtx5090, jetson-thor or dgx-spark: trtspec doctor lists what is known"
        yield Diagnostic("engine.gpu", "missing-key", "an engine is built for one GPU", hint)
        return
    gpu = GPUS.get(asked.lower())
    if gpu and not release.platforms_of(gpu.sm):
        known = ", ".join(f"{sm // 10}.{sm % 10}" for sm in release.sms)
        message = f"Edge-LLM {release.version} has nothing for {gpu.name}, compute capability {gpu.sm / 10:.1f}"
        yield Diagnostic("engine.gpu", "gpu", message, f"it has: {known}", source=release.source)


def _about_models(context: PlanContext, release: EdgeRelease) -> Iterator[Diagnostic]:
    model_type = str(context.sources["target"].config.get("model_type"))
    if model_type not in release.models:
        message = f"Edge-LLM {release.version} builds no engine of {model_type}"
        source = f"{PACKAGE}:experimental/builder/models/registry.py@{release.version}"
        yield Diagnostic("target.model", "family", message, f"it has: {', '.join(release.models)}", source=source)
    elif context.recipe.speculation.method == "mtp" and model_type not in release.mtp_models:
        message = f"Edge-LLM {release.version} does not draft with layers of {model_type}"
        yield Diagnostic(METHOD, "version", message, "use method: eagle3, with a net for this target", source=CLI)
    elif context.recipe.speculation.method == "mtp" and not count_layers(context.sources["target"].config):
        yield Diagnostic(METHOD, "no-draft", "the target has no layers for further tokens", "use method: eagle3")
    for role, path, asked in models_of(context):
        if asked.dtype == "bfloat16":
            message = f"Edge-LLM computes in float16, and the {role} is asked for in bfloat16"
            yield Diagnostic(f"{path}.dtype", "not-supported", message, "set dtype: float16", source=QUANTIZER)


def _about_drafting(context: PlanContext) -> Iterator[Diagnostic]:
    if context.options.acceptance != "exact":
        message = "Edge-LLM accepts exactly; it has no typical acceptance"
        yield Diagnostic(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=ENGINE)
    if not drafting_of(context):
        return
    if context.recipe.engine.max_batch_size > 1:
        message = "with drafts Edge-LLM serves one request after the other, whatever max_batch_size says"
        yield Diagnostic(
            "engine.max_batch_size", "unused", message, "set it to 1", "warning", f"{ENGINE}, ifb_unsupported_reason"
        )
    message = "requests that sample are served by the target alone: Edge-LLM would take the most probable token"
    yield Diagnostic(METHOD, "greedy-only", message, None, "warning", ENGINE)


def _about_eagle3(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield where a net reads layers that Edge-LLM hands on otherwise, or cannot."""
    head, target = context.draft_head, context.target_config
    layers = tuple(head.config.get(NAME, {}).get("aux_layers", ())) if head else ()
    if not layers or target is None:
        return
    path, read = "speculation.draft.model", ", ".join(map(str, layers))
    if max(layers) >= target.num_layers or min(layers) < 1:
        message = f"the net reads layers {read}, and Edge-LLM hands on those from 1 to {target.num_layers - 1}"
        yield Diagnostic(path, "aux-layers", message, "take a net of other layers", source=EAGLE3)
    elif layers != (own := (2, target.num_layers // 2, target.num_layers - 3)):
        handed = ", ".join(map(str, own))
        message = f"the exported ONNX of the target hands on layers {handed}, and the net reads {read}"
        hint = "build engines with reproduce.sh, which hands on the right ones; of the ONNX few drafts are accepted"
        yield Diagnostic(path, "aux-layers", message, hint, "warning", EXPORTER)


def _about_quantization(context: PlanContext, release: EdgeRelease) -> Iterator[Diagnostic]:
    gpu = GPUS.get((context.recipe.engine.gpu or "").lower())
    for role, path, asked in models_of(context):
        wanted, stored = asked.quantization, source_format(context.sources[role])
        if stored.weights not in release.formats or wanted.weights not in ("none", "fp8"):
            odd = wanted.weights if stored.weights in release.formats else stored.weights
            message = f"{odd} weights of the {role}: of what trtspec knows Edge-LLM takes {', '.join(release.formats)}"
            yield Diagnostic(
                f"{path}.quantization.weights", "quantization", message, "set weights: fp8", source=QUANTIZER
            )
        if "fp8" in (wanted.weights, wanted.kv_cache, stored.weights) and gpu and not gpu.has_fp8:
            only = "; it has FP16, INT8 and INT4 alone" if gpu.sm == ORIN_SM else ""
            message = f"the {role} is FP8, and {gpu.name} multiplies no FP8{only}"
            yield Diagnostic("engine.gpu", "quantization", message, "FP8 needs compute capability 8.9")
        if set(wanted.exclude) != {"lm_head"}:
            message = "Edge-LLM quantizes every layer and not the head"
            yield Diagnostic(
                f"{path}.quantization.exclude", "not-supported", message, "remove exclude", source=QUANTIZER
            )
        if role == "draft" and wanted.kv_cache != "none" and context.recipe.speculation.method in BLOCK_METHODS:
            message = "Edge-LLM keeps the cache of a block net in 16 bits"
            yield Diagnostic(f"{path}.quantization.kv_cache", "not-supported", message, "remove it", source=QUANTIZER)


def _about_parallel(context: PlanContext) -> Iterator[Diagnostic]:
    for _, path, asked in models_of(context):
        if asked.parallel.ranks > 1:
            message = "Edge-LLM serves one GPU here; it divides no target that is drafted for"
            yield Diagnostic(
                f"{path}.parallel", "parallel", message, "remove it", source=f"{CLI}, _resolve_build_selection"
            )


def _about_engine(context: PlanContext) -> Iterator[Diagnostic]:
    build = context.recipe.engine.build
    for key in ("image", "timing_cache"):
        if getattr(build, key):
            message = f"Edge-LLM's builder takes no {key} here"
            yield Diagnostic(f"engine.build.{key}", "not-supported", message, "remove it", source=CLI)
    for option in context.recipe.engine.extra:
        message = "an option of trtllm-build; Edge-LLM's builder has others"
        yield Diagnostic(f"engine.extra.{option}", "unused", message, severity="warning")
