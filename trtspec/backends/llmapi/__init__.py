# SPDX-License-Identifier: Apache-2.0
"""Backend for TensorRT-LLM's LLM API: runs unconverted checkpoints, also quantized ones, on its PyTorch backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trtspec.backends.base import AutoSelection, Backend, Migration, deferred, methods_of_releases
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.common.trtllm_versions import find_version_spec, offer_installed, version_specs
from trtspec.backends.llmapi.arguments import KNOBS
from trtspec.backends.llmapi.check import check
from trtspec.recipe.schema import Recipe

PACKAGE = "tensorrt_llm"
# EAGLE-3 heads published by the method's authors, by target (SafeAILab/EAGLE:README.md).
EAGLE3_HEADS = {
    "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE3-Vicuna1.3-13B",
    "meta-llama/Llama-3.1-8B-Instruct": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "meta-llama/Llama-3.3-70B-Instruct": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
}
# Names of the model families whose classes are `plain` in backends/common/trtllm_versions.
PLAIN_FAMILIES = ("qwen2", "mixtral", "mistral", "gemma-3", "gemma-4", "phi-3", "phi-4")
# Options of trtllm-build with an equivalent in the LLM API (tensorrt_llm/llmapi/llm_args.py).
ELSEWHERE = {
    "tokens_per_block": "kv_cache_config.tokens_per_block",
    "logits_dtype": "nothing: logits are float32",
    "gather_context_logits": "the request's return_context_logits",
    "gather_generation_logits": "the request's return_generation_logits",
    "lora_dir": "lora_config.lora_dir",
    "max_lora_rank": "lora_config.max_lora_rank",
}


def _versions() -> list[str]:
    """Return all supported releases, release candidates first, so that the default is the newest final release."""
    releases = [release.version for spec in version_specs().values() for release in spec.releases]
    return sorted(releases, key=lambda version: "rc" not in version)


def _methods() -> Mapping[str, str]:
    apis = (spec.api for spec in version_specs().values())
    return methods_of_releases({ours: kind.name for ours, kind in api.methods.items()} for api in apis)


def migrate(migration: Migration, recipe: Recipe) -> None:
    """Migrate a recipe from TensorRT engines or from another version of the LLM API.

    1.2.1 is the last version with trtllm-build (NVIDIA/TensorRT-LLM pulls 15763, 15907 and 15918). The PyTorch backend
    does not support Medusa, EAGLE-1/2, lookahead and ReDrafter (docs/source/legacy/tensorrt-backend-removal.md).
    """
    for option in recipe.engine.extra:
        reason = f"use {ELSEWHERE[option]}" if option in ELSEWHERE else "it applies to TensorRT engines"
        migration.drop(f"engine.extra.{option}", f"trtllm-build does not exist: {reason}")
    migration.drop_empty("extra")
    migration.drop("engine.build", "no engine is built")
    migration.drop("serving.fast_logits", "draft and target run in one executor")
    if isinstance(migration.document.get("serving", {}).get("placement"), dict):
        migration.drop("serving.placement.draft", "the draft runs on the target's GPUs")
    _migrate_method(migration, recipe)
    _migrate_quantization(migration, recipe)
    migration.keep("gates", "serving")


def _migrate_method(migration: Migration, recipe: Recipe) -> None:
    method, spec = recipe.speculation.method, find_version_spec(migration.version)
    if method == "none":
        return
    found = spec.api.methods.get(method)
    # a migration does not read checkpoints, so the family is the one in the model's name
    plain = next((family for family in PLAIN_FAMILIES if family in recipe.target.model.lower()), None)
    if found and found.inside and plain:
        why = f"from {spec.minor} on {method} drafts inside the target, but {plain} models are plain decoders there"
        _take_ngram(migration, recipe, why)
        return
    if found:
        migration.note("kept", "speculation.method", f"{method} is the LLM API's decoding_type {found.name}")
        migration.drop("speculation.draft.parallel", "the draft uses the target's parallelism")
        migration.drop("speculation.draft.quantization", "the draft's checkpoint runs unchanged")
        return
    gone = f"{method} does not have a successor in the LLM API"
    head = EAGLE3_HEADS.get(recipe.target.model) if method in ("medusa", "eagle", "redrafter") else None
    if head:
        migration.document["speculation"] = {"method": "eagle3", "draft_len": 4, "draft": {"model": head}}
        migration.note("changed", "speculation.method", f"{gone}; eagle3 drafts with a head published for this target")
        migration.note("open", "speculation.draft.revision", f"the commit of {head} to use")
        return
    why = "ngram does not need training; an EAGLE-3 head trained for the target is accepted more often"
    _take_ngram(migration, recipe, f"{gone}; {why}")


def _take_ngram(migration: Migration, recipe: Recipe, why: str) -> None:
    migration.document["speculation"] = {"method": "ngram", "draft_len": 4}
    migration.note("changed", "speculation.method", why)
    if recipe.gates.min_acceptance or recipe.gates.min_speedup:
        migration.note("kept", "gates", "the limits were set for another method: measure again")


def _migrate_quantization(migration: Migration, recipe: Recipe) -> None:
    weights = recipe.target.quantization.weights
    if weights == "none":
        return
    why = f"the LLM API does not quantize: use a checkpoint stored in {weights}, such as ModelOpt exports"
    migration.drop("target.quantization.weights", why)
    migration.drop("target.quantization.calibration", "no calibration takes place")
    migration.drop("target.quantization.exclude", "the checkpoint determines it")
    migration.note("open", "target.model", why)


BACKEND = Backend(
    summary="TensorRT-LLM's LLM API on its PyTorch backend",
    methods=_methods,
    memory=partial(plan_source_memory, fraction_of="free"),
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    converts=False,
    knobs=KNOBS,
    package=PACKAGE,
    versions=_versions,
    nearest_versions=True,
    defaults=("trtspec", "model"),
    structured_output="optional",
    check=check,
    serving=deferred(f"{__name__}.artifact:serving"),
    auto=AutoSelection(rank=2, offer=partial(offer_installed, PACKAGE, _methods)),
    migrate=migrate,
)
