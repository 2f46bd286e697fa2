# SPDX-License-Identifier: Apache-2.0
"""Checks of a recipe against its release of Edge-LLM, and migration of recipes from trtllm-build to Edge-LLM.

The last version of trtllm-build is 1.2.1. Edge-LLM's builder supports other GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtspec.backends.base import Migration
from trtspec.backends.common.checks import DRAFT, METHOD, check_acceptance, check_confidence_table, check_unconverted
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.backends.edge_llm.arguments import ASSISTANTS, always_drafts, aux_layers, drafting_sizes
from trtspec.backends.edge_llm.toolchain import EdgeRelease, releases
from trtspec.checkpoints.prequantized import source_format
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.gpus import GPUS
from trtspec.methods.dflash import block_size, check_class, find_variant
from trtspec.methods.gemma4_mtp import PAIR, TARGETS, check_pair
from trtspec.methods.mtp import count_layers
from trtspec.recipe.schema import Recipe

PACKAGE = "NVIDIA/TensorRT-Edge-LLM"
CLI = f"{PACKAGE}:experimental/builder/cli.py@0.11.0"
ENGINE = f"{PACKAGE}:experimental/server/runtime/engine.py@0.11.0"
QUANTIZER = f"{PACKAGE}:tensorrt_edgellm/scripts/quantize.py@0.11.0"
EXPORTER = f"{PACKAGE}:tensorrt_edgellm/models/default/modeling_default.py@0.11.0"
EXPORT_CLI = f"{PACKAGE}:tensorrt_edgellm/scripts/export.py@0.11.0"
BUILDER = f"{PACKAGE}:experimental/builder/README.md@0.11.0, Gemma4 MTP"
DFLASH2 = f"{PACKAGE}:tensorrt_edgellm/dflash.py@0.11.0, resolve_dflash_contract"
DFLASH2_SIZES = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
DFLASH2_LAYERS = 5
EAGLE3 = f"{PACKAGE}:experimental/builder/models/eagle3/configuration.py@0.11.0"
ORIN_SM = 87  # supports FP16, INT8 and INT4 only: the support matrix of 0.11
BLOCK_METHODS = ("dflash", "dspark")


def check(context: PlanContext) -> Iterable[Diagnostic]:
    release, method = releases()[context.version], context.method_name
    if method != "none" and method not in release.methods:
        return  # reported by `check`, with the backends that run it
    yield from _check_gpu(context, release)
    yield from _check_models(context, release)
    yield from _check_drafting(context)
    yield from _check_eagle3(context)
    if method == "dflash":
        yield from _check_dflash(context)
    yield from _check_formats(context, release)
    yield from check_unconverted(context, "Edge-LLM")
    for key in ("image", "timing_cache"):
        if getattr(context.recipe.engine.build, key):
            message = f"Edge-LLM's builder does not support {key}"
            yield Diagnostic(f"engine.build.{key}", "not-supported", message, "remove it", source=CLI)


def _check_gpu(context: PlanContext, release: EdgeRelease) -> Iterator[Diagnostic]:
    asked = context.recipe.engine.gpu
    if asked is None:
        hint = "set engine.gpu, such as rtx5090, jetson-thor or dgx-spark: trtspec doctor lists the supported GPUs"
        yield Diagnostic("engine.gpu", "missing-key", "an engine is built for one GPU", hint)
        return
    gpu = GPUS.get(asked.lower())
    if gpu and not release.tensorrt_for(gpu.sm):
        supported = ", ".join(f"{sm // 10}.{sm % 10}" for sm in release.sms)
        message = f"Edge-LLM {release.version} does not support {gpu.name}, compute capability {gpu.sm / 10:.1f}"
        yield Diagnostic("engine.gpu", "gpu", message, f"supported: {supported}", source=release.source)


def _check_models(context: PlanContext, release: EdgeRelease) -> Iterator[Diagnostic]:
    model_type = str(context.sources["target"].config.get("model_type"))
    if context.method_name == ASSISTANTS:
        yield from _check_assistant(context)
    known = release.assistant_targets if context.method_name == ASSISTANTS else release.models
    if model_type not in known:
        message = f"Edge-LLM {release.version} does not support {model_type}"
        message += " with an assistant" if context.method_name == ASSISTANTS else ""
        source = f"{PACKAGE}:experimental/builder/models/registry.py@{release.version}"
        yield Diagnostic("target.model", "family", message, f"supported: {', '.join(known)}", source=source)
    elif context.method_name == "mtp" and model_type not in release.mtp_models:
        message = f"Edge-LLM {release.version} does not draft with MTP layers of {model_type}"
        yield Diagnostic(METHOD, "version", message, "use method: eagle3 with a draft for this target", source=CLI)
    elif context.method_name == "mtp" and not count_layers(context.sources["target"].config):
        yield Diagnostic(METHOD, "no-draft", "the target lacks MTP layers", "use method: eagle3")


def _check_assistant(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for a pair of target and assistant that Edge-LLM would refuse."""
    target, draft = context.sources["target"], context.sources["draft"]
    if target.config.get("model_type") in TARGETS:  # others are reported as families that Edge-LLM does not support
        yield from check_pair(target, draft, context.recipe.engine.max_seq_len)
    text = draft.config.get("text_config")
    if isinstance(text, dict) and text.get("num_kv_shared_layers") != text.get("num_hidden_layers"):
        message = "some layers of the assistant have keys and values of their own, which Edge-LLM does not support"
        yield Diagnostic(DRAFT, "layout", message, PAIR, source=f"{EXPORT_CLI}, _validate_gemma4_mtp_pair")
    if not all((source.root / "tokenizer.json").is_file() for source in (target, draft)):
        message = "Edge-LLM compares the files tokenizer.json of target and assistant, one of which is missing"
        hint = "download the checkpoints with their tokenizers"
        yield Diagnostic(DRAFT, "missing-tokenizer", message, hint, source=f"{EXPORT_CLI}, _assert_tokenizers_match")


def _check_drafting(context: PlanContext) -> Iterator[Diagnostic]:
    yield from check_acceptance(context, "Edge-LLM accepts drafts exactly; typical acceptance is not supported", ENGINE)
    yield from check_confidence_table(context, "Edge-LLM")
    if not drafting_sizes(context):
        return
    if context.recipe.engine.max_batch_size > 1:
        message = "with speculation, Edge-LLM serves one request at a time and ignores max_batch_size"
        source = f"{ENGINE}, ifb_unsupported_reason"
        yield Diagnostic("engine.max_batch_size", "unused", message, "set it to 1", "warning", source)
    if always_drafts(context):
        message = "sampled requests are rejected: Edge-LLM decodes greedily with an assistant, and cannot do without it"
        hint = "use temperature 0 or top_k 1; vLLM and SGLang also serve sampled requests"
        yield Diagnostic(METHOD, "greedy-only", message, hint, "warning", BUILDER)
        return
    message = "sampled requests run without speculation, because Edge-LLM would decode them greedily"
    yield Diagnostic(METHOD, "greedy-only", message, None, "note", ENGINE)


def _check_eagle3(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error or a warning if the drafter reads target layers that Edge-LLM does not provide."""
    layers, target = aux_layers(context), context.target_config
    if not layers or target is None:
        return
    path, read = "speculation.draft.model", ", ".join(map(str, layers))
    if max(layers) >= target.num_layers or min(layers) < 1:
        message = f"the drafter reads layers {read}, but Edge-LLM provides layers 1 to {target.num_layers - 1}"
        yield Diagnostic(path, "aux-layers", message, "choose a drafter with other layers", source=EAGLE3)
    elif layers != (own := (2, target.num_layers // 2, target.num_layers - 3)):
        exported = ", ".join(map(str, own))
        message = f"the target's exported ONNX provides layers {exported}, but the drafter reads {read}"
        hint = "build engines with reproduce.sh, which provides these layers; with the ONNX few drafts are accepted"
        yield Diagnostic(path, "aux-layers", message, hint, "warning", EXPORTER)


def _check_dflash(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for nets that Edge-LLM would take for DFlash, and for DFlash2 nets of other sizes than it builds."""
    net, path = context.sources["draft"], "speculation.draft.model"
    found = find_variant(net)
    if found is None:
        return
    if found.name != "DFlash2":
        message = f"the drafter is {found.net}, whose {found.more} Edge-LLM does not compute"
        hint = f"use a DFlash net, or another engine: {found.engines} run it"
        yield Diagnostic(path, "variant", message, hint, source=DFLASH2)
        return
    yield from check_class(net)
    section = net.config.get("dflash_config")
    config = {**net.config, **(section if isinstance(section, dict) else {})}
    odd = [f"{key} {config.get(key)}" for key, value in DFLASH2_SIZES.items() if config.get(key) != value]
    if config.get("is_causal") is not False:
        odd.append(f"is_causal {config.get('is_causal')}")
    if len(layers := config.get("target_layer_ids") or []) != DFLASH2_LAYERS:
        odd.append(f"{len(layers)} target layers")
    if odd:
        sizes = ", ".join(f"{key} {value}" for key, value in DFLASH2_SIZES.items())
        message = f"Edge-LLM runs DFlash2 nets only with {sizes}, {DFLASH2_LAYERS} target layers and is_causal false"
        yield Diagnostic(path, "sizes", f"{message}, not with {', '.join(odd)}", "use another net", source=DFLASH2)
    block = block_size(net)
    if block and context.draft_shape.max_depth != block - 1:
        message = (
            f"Edge-LLM drafts a DFlash2 net's whole block, {block - 1} tokens, not {context.draft_shape.max_depth}"
        )
        hint = f"set speculation.draft_len: {block - 1}"
        yield Diagnostic("speculation.draft_len", "block-size", message, hint, source=CLI)


def _check_formats(context: PlanContext, release: EdgeRelease) -> Iterator[Diagnostic]:
    """Yield errors for dtypes, quantizations and parallelism of target and draft that Edge-LLM does not support."""
    gpu = context.gpu
    for role, path, asked in recipe_models(context):
        wanted, stored, section = asked.quantization, source_format(context.sources[role]), f"{path}.quantization"
        if asked.dtype == "bfloat16":
            message = f"Edge-LLM computes in float16, but the recipe requests bfloat16 for the {role}"
            yield Diagnostic(f"{path}.dtype", "not-supported", message, "set dtype: float16", source=QUANTIZER)
        if stored.weights not in release.formats or wanted.weights not in ("none", "fp8"):
            odd = wanted.weights if stored.weights in release.formats else stored.weights
            message = f"{odd} weights of the {role} are not supported by Edge-LLM; it takes "
            message += ", ".join(release.formats)
            yield Diagnostic(f"{section}.weights", "quantization", message, "set weights: fp8", source=QUANTIZER)
        if "fp8" in (wanted.weights, wanted.kv_cache, stored.weights) and gpu and not gpu.has_fp8:
            only = "; it supports only FP16, INT8 and INT4" if gpu.sm == ORIN_SM else ""
            message = f"the {role} is FP8, which {gpu.name} does not support{only}"
            yield Diagnostic("engine.gpu", "quantization", message, "FP8 needs compute capability 8.9")
        if set(wanted.exclude) != {"lm_head"}:
            message = "Edge-LLM quantizes every layer except the head"
            yield Diagnostic(f"{section}.exclude", "not-supported", message, "remove exclude", source=QUANTIZER)
        if role == "draft" and wanted.kv_cache != "none" and context.method_name in BLOCK_METHODS:
            message = "Edge-LLM stores the KV cache of a block drafter in 16 bits"
            yield Diagnostic(f"{section}.kv_cache", "not-supported", message, "remove it", source=QUANTIZER)
        if asked.parallel.ranks > 1:
            message = "this backend runs Edge-LLM on one GPU; "
            message += "Edge-LLM does not support speculation with parallel targets"
            source = f"{CLI}, _resolve_build_selection"
            yield Diagnostic(f"{path}.parallel", "parallel", message, "remove it", source=source)


def migrate(migration: Migration, recipe: Recipe) -> None:
    for option in recipe.engine.extra:
        migration.drop(f"engine.extra.{option}", "an option of trtllm-build")
    migration.drop("engine.build.image", "Edge-LLM's commands run without a container")
    migration.drop("engine.build.timing_cache", "Edge-LLM's builder does not support it")
    migration.drop_empty("extra", "build")
    migration.drop("engine.max_num_tokens", "Edge-LLM's builder derives it from the lengths")
    migration.drop("serving.fast_logits", "draft and target run in one runtime")
    _gpu(migration, recipe)
    _method(migration, recipe)
    for path in ("target.parallel", "speculation.draft.parallel"):
        migration.drop(path, "Edge-LLM runs on one GPU")
    migration.keep("gates", "serving")


def _gpu(migration: Migration, recipe: Recipe) -> None:
    gpu, release = GPUS.get((recipe.engine.gpu or "").lower()), releases()[migration.version]
    if gpu and release.tensorrt_for(gpu.sm):
        migration.note("kept", "engine.gpu", f"Edge-LLM {release.version} supports {gpu.name}")
        return
    fitting = ", ".join(each.name for each in GPUS.values() if release.tensorrt_for(each.sm))
    migration.drop("engine.gpu", f"Edge-LLM {release.version} does not support {recipe.engine.gpu}")
    migration.note("open", "engine.gpu", f"the target device: {fitting}")


def _method(migration: Migration, recipe: Recipe) -> None:
    method, release = recipe.speculation.method, releases()[migration.version]
    if method == "none":
        return
    if method in release.methods:
        migration.note("kept", "speculation.method", f"{method} is Edge-LLM's --spec-type {release.methods[method]}")
        return
    migration.document["speculation"] = {"method": "eagle3", "draft_len": 4}
    why = f"Edge-LLM does not support {method}; it supports {', '.join(release.methods)}"
    migration.note("changed", "speculation.method", why)
    migration.note("open", "speculation.draft.model", "an EAGLE-3 drafter for this target")
