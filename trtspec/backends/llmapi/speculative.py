# SPDX-License-Identifier: Apache-2.0
"""A recipe's speculation as the LLM API's `speculative_config`, in the spelling of the version that will read it.

Names and fields are the spec's (backends/common/trtllm_versions); here is what each method says in them.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.common.trtllm_versions import DecodingType, version_spec_of
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.drafting import drafts_beside
from trtspec.backends.llmapi.lengths import length_fields
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.head_checks import mask_token
from trtspec.methods.ngram import NgramOptions
from trtspec.methods.suffix import SuffixOptions

# From this minor on trees can be drafted, and requests that sample are verified as such, by the target's own draw
# (NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396; pulls 14745 and 15775).
DRAFTS_TREES = SAMPLES_WITH_DRAFTS = (1, 3)
# From this one on the sampler reads what a request says of itself; before, all tokens are the argmax (Ataraksia/
# TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py@a451bf93, which merges 1.1.0rc6).
SAMPLES = (1, 1)
# What samples then: eagle3 and mtp take the argmax (NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/eagle3.py
# @001e6700), and draft_target's drafts are the argmax's but can be accepted as if they were drawn, which is not the
# target's distribution (model_drafter.py there, process_static_draft_outputs).
SAMPLING_METHODS = ("none", "ngram")
# Without it a sampled draft is kept where the target draws the same token, which is the target's own law too.
REJECTION = "use_rejection_sampling"


def minor_of(version: str) -> tuple[int, int]:
    """Return a version's first two numbers."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_greedy_only(context: PlanContext) -> bool:
    """Return whether requests that sample would get another distribution than the target's, and have to be refused."""
    minor = minor_of(context.version)
    if minor >= SAMPLES_WITH_DRAFTS:
        return False
    return minor < SAMPLES or context.recipe.speculation.method not in SAMPLING_METHODS


def speculative_config(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return the LLM API's speculative_config; empty for the target alone.

    `draft_path` is a directory or a hub id. The context has a method that the version knows: check come first.
    """
    method = context.recipe.speculation.method
    if method == "none":
        return {}
    api = version_spec_of(context.version).api
    kind = api.methods[method]
    config: dict[str, Any] = {"decoding_type": kind.name, length_field(kind): context.draft_shape.max_depth}
    if api.draft_key in kind.required:
        config[api.draft_key] = draft_path
    if drafts_beside(context):
        config[kind.beside] = False
    return config | length_fields(context) | _own_fields(context)


def verifies_with_logits(context: PlanContext) -> bool:
    """Return whether the version can be told to verify sampled drafts with the draft's probabilities, or not to."""
    kind = version_spec_of(context.version).api.methods[context.recipe.speculation.method]
    return REJECTION in kind.fields


def step_tokens(context: PlanContext) -> int:
    """Return the drafted tokens of a request in a step; PARD's next masks go with what is verified.

    NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, PARDDecodingConfig.tokens_per_gen_step.
    """
    tokens = context.draft_shape.max_tokens
    return 2 * tokens - 1 if context.recipe.speculation.method == "pard" else tokens


def length_field(kind: DecodingType) -> str:
    """Return what the draft's length is called: for MTP it was the number of its layers once."""
    return next(name for name in ("num_nextn_predict_layers", "max_draft_len") if name in kind.required)


def _own_fields(context: PlanContext) -> dict[str, Any]:
    """Return what a method's options are called."""
    options = context.options
    if isinstance(options, NgramOptions):
        # a pool of each request's own: what one text repeats is not drafted for another
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
        )  # two keys may name one, and upstream takes the other first
    return {}


def _suffix_fields(context: PlanContext, options: SuffixOptions) -> dict[str, Any]:
    """Return what is looked up: the longest match, in other answers too unless the recipe wants none."""
    fields: dict[str, Any] = {"max_matching_ngram_size": -1, "enable_global_pool": options.max_cached_requests > 0}
    if "max_cached_requests" in context.recipe.speculation.options and options.max_cached_requests:
        fields["global_pool_size"] = options.max_cached_requests
    return fields
