# SPDX-License-Identifier: Apache-2.0
"""A recipe's speculation as the LLM API's `speculative_config`, in the spelling of its version.

Names and fields come from the version's spec (backends/common/trtllm_versions); this module sets each method's values.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.common.trtllm_versions import DecodingType, find_version_spec
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.drafting import drafts_separately
from trtspec.backends.llmapi.lengths import length_fields
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.head_checks import mask_token
from trtspec.methods.ngram import NgramOptions
from trtspec.methods.suffix import SuffixOptions

# Versions from here on draft trees and verify sampled requests against the target's own sample
# (NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396; pulls 14745 and 15775).
DRAFTS_TREES = SAMPLES_WITH_DRAFTS = (1, 3)
# Versions from here on honour a request's sampling options; earlier ones always take the argmax (Ataraksia/
# TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py@a451bf93, which merges 1.1.0rc6).
SAMPLES = (1, 1)
# The methods with exact sampling in those versions. eagle3 and mtp take the argmax (NVIDIA/TensorRT-LLM:tensorrt_llm/
# _torch/speculative/eagle3.py@001e6700); draft_target accepts argmax drafts as if they were sampled, which changes the
# distribution (model_drafter.py there, process_static_draft_outputs).
SAMPLING_METHODS = ("none", "ngram")
# Without it a draft token is accepted if the target samples the same token, which also keeps the target's distribution.
REJECTION = "use_rejection_sampling"


def minor_version(version: str) -> tuple[int, int]:
    """Return the major and minor version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_greedy_only(context: PlanContext) -> bool:
    """Return whether sampled requests would not follow the target's distribution and must be rejected."""
    minor = minor_version(context.version)
    if minor >= SAMPLES_WITH_DRAFTS:
        return False
    return minor < SAMPLES or context.recipe.speculation.method not in SAMPLING_METHODS


def speculative_config(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return the LLM API's speculative_config; empty for the target alone.

    `draft_path` is a directory or a hub id. The caller has checked that the version supports the context's method.
    """
    method = context.recipe.speculation.method
    if method == "none":
        return {}
    api = find_version_spec(context.version).api
    kind = api.methods[method]
    config: dict[str, Any] = {"decoding_type": kind.name, length_field(kind): context.draft_shape.max_depth}
    if api.draft_key in kind.required:
        config[api.draft_key] = draft_path
    if drafts_separately(context):
        config[kind.beside] = False
    return config | length_fields(context) | _option_fields(context)


def verifies_with_logits(context: PlanContext) -> bool:
    """Return whether the version can enable or disable the verification of sampled drafts with draft probabilities."""
    kind = find_version_spec(context.version).api.methods[context.recipe.speculation.method]
    return REJECTION in kind.fields


def step_tokens(context: PlanContext) -> int:
    """Return the draft tokens of a request in a step; PARD verifies the next step's masks too.

    NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, PARDDecodingConfig.tokens_per_gen_step.
    """
    tokens = context.draft_shape.max_tokens
    return 2 * tokens - 1 if context.recipe.speculation.method == "pard" else tokens


def length_field(kind: DecodingType) -> str:
    """Return the field of the draft length: for MTP it once was the number of its layers."""
    return next(name for name in ("num_nextn_predict_layers", "max_draft_len") if name in kind.required)


def _option_fields(context: PlanContext) -> dict[str, Any]:
    """Return the fields of a method's options."""
    options = context.options
    if isinstance(options, NgramOptions):
        # a separate pool for each request, so that a text's repetitions are not drafted for another request
        return {"max_matching_ngram_size": options.max_match, "is_public_pool": False}
    if isinstance(options, Eagle3Options) and options.top_k:
        return {
            "use_dynamic_tree": True,
            "dynamic_tree_max_topK": options.top_k,
            "max_total_draft_tokens": context.draft_shape.max_tokens,
        }
    if isinstance(options, DraftTargetOptions) and "use_draft_logits" in context.recipe.speculation.options:
        return {REJECTION: options.use_draft_logits} if verifies_with_logits(context) else {}
    if isinstance(options, SuffixOptions):
        return _suffix_fields(context, options)
    if context.recipe.speculation.method == "pard":
        mask = mask_token(context.sources["draft"])
        return (
            {} if mask is None else {"mask_token_id": mask}
        )  # config.json may have two mask keys, and upstream prefers the other one
    return {}


def _suffix_fields(context: PlanContext, options: SuffixOptions) -> dict[str, Any]:
    """Return the lookup fields: the longest match, also in other responses unless the recipe disables it."""
    fields: dict[str, Any] = {"max_matching_ngram_size": -1, "enable_global_pool": options.max_cached_requests > 0}
    if "max_cached_requests" in context.recipe.speculation.options and options.max_cached_requests:
        fields["global_pool_size"] = options.max_cached_requests
    return fields
