# SPDX-License-Identifier: Apache-2.0
"""Check a recipe against its version of vLLM: errors that prevent serving, and ignored settings."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common import checks
from trtspec.backends.common.checks import METHOD, OPTIONS, SCHEDULE, VERIFY, source_architecture, unused
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm import drafters
from trtspec.backends.vllm.versions import PARALLEL, VllmRelease, cite, having, releases
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.mtp import count_layers

LENGTHS = "num_speculative_tokens_per_batch_size"
# their proposers assert the full length, or allocate a block of it once
ONE_LENGTH = ("suffix", "medusa", "dflash", "dspark", *PARALLEL)


def _check_features(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield the parts of `schedule` and `verify` that a release does not support."""
    speculation = context.recipe.speculation
    if speculation.schedule and LENGTHS not in release.fields:
        message = f"vLLM {release.version} does not adapt the draft length to the batch size"
        hint = having(lambda each: LENGTHS in each.fields)
        yield Diagnostic(SCHEDULE, "version", message, hint, source=cite(release))
    elif speculation.schedule and speculation.method in ONE_LENGTH:
        message = f"vLLM does not adapt the draft length of {speculation.method} to the batch size"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule", source=cite(release, "v1/spec_decode"))
    if speculation.verify == "block" and (message := _block_rejection(context, release)):
        hint = "set verify: standard" if "runs_v2" in release.does else having(lambda each: "runs_v2" in each.does)
        yield Diagnostic(VERIFY, "not-supported", message, hint, source=cite(release, "v1/sample/rejection_sampler.py"))


def _block_rejection(context: PlanContext, release: VllmRelease) -> str:
    """Return why block verification is not available; "" if it is.

    vLLM's V1 model runner does not support block verification and does not report that it ignores the setting.
    """
    method = context.method_name
    if "block" not in release.rules or "runs_v2" not in release.does:
        return f"vLLM {release.version} does not support block verification for every target"
    if method in ("ngram", "suffix"):
        same = "so block verification accepts the same tokens as standard"
        return f"{method} does not provide draft probabilities, {same}"
    v1 = release.methods[method] in release.not_in_v2 or method in PARALLEL
    if v1 or (context.method.drafts_with == "model" and drafters.has_other_vocabulary(context)):
        return f"vLLM runs this drafter on its V1 model runner, which verifies {method} token by token"
    return ""


def check(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield all problems of a recipe with vLLM."""
    release, method = releases()[context.version], context.method_name
    if method != "none" and method not in release.methods:
        message, hint = f"vLLM {release.version} does not support {method}", having(lambda each: method in each.methods)
        yield Diagnostic(METHOD, "method", message, hint, source=cite(release))
        return
    if method != "none":
        yield from _check_options(context, cite(release))
        yield from _check_mtp(context, release)
        yield from _check_parallel(context, release)
        yield from drafters.check_drafter(context, release)
        yield from drafters.check_medusa(context, release)
        yield from _check_features(context, release)
        yield from drafters.check_vocabulary(context)
    yield from checks.check_online(context, "vLLM", release.online)
    maps_vocabularies = drafters.supports_heterogeneous_vocab(release.version, method)
    yield from checks.check_unconverted(context, "vLLM", maps_vocabularies=maps_vocabularies)
    if not context.recipe.serving.streaming:
        message = "Triton's vLLM backend serves decoupled models only"
        source = "triton-inference-server/vllm_backend:src/model.py@00ea75bc"
        yield Diagnostic("serving.streaming", "not-supported", message, "set it to true", source=source)


def _check_options(context: PlanContext, source: str) -> Iterable[Diagnostic]:
    """Yield the method's options that vLLM does not support."""
    speculation, draft_shape = context.recipe.speculation, context.draft_shape
    message = "vLLM accepts drafts exactly; typical acceptance is not supported"
    yield from checks.check_acceptance(context, message, source)
    yield from checks.check_full_drafts(context, "vLLM", source)
    if "use_draft_logits" in speculation.options and speculation.verify != "block":
        message = "vLLM drafts and verifies greedily chosen tokens, without draft probabilities"
        yield unused(f"{OPTIONS}.use_draft_logits", message, f"{source}, draft_sample_method")
    if speculation.method == "suffix":
        message = "vLLM needs arctic-inference for suffix decoding, which its containers do not include"
        hint = "pip install arctic-inference==0.1.1 in vLLM's environment"
        yield Diagnostic(METHOD, "needs-package", message, hint, "warning", source=source)
    if draft_shape.max_tokens > draft_shape.max_depth:
        message = f"vLLM drafts a chain of {draft_shape.max_depth} tokens, not the tree's {draft_shape.max_tokens}"
        yield Diagnostic(OPTIONS, "tree", message, severity="warning", source=source)


def _check_mtp(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    if context.method_name != "mtp":
        return
    source, depth = context.sources["target"], context.draft_shape.max_depth
    layers = count_layers(source.config)
    if not layers:
        yield Diagnostic(METHOD, "no-draft", "the target lacks MTP layers", "use method: ngram")
    elif depth > layers and depth % layers:
        message = f"the target's {layers} MTP layers are used in turn, and {depth} is not a multiple of {layers}"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, source=f"{cite(release)}, n_predict")
    if not _has_mtp_layers(release, source):
        message = f"vLLM {release.version} does not draft with MTP layers of {source.config.get('model_type')}"
        hint = having(lambda each: _has_mtp_layers(each, source)) or "use method: ngram"
        yield Diagnostic(METHOD, "version", message, hint, source=cite(release))


def _has_mtp_layers(release: VllmRelease, source: Source) -> bool:
    by_type = source.config.get("model_type") in release.mtp_models
    return by_type or source_architecture(source) in release.mtp_architectures


def _check_parallel(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield parallelism of draft and target that vLLM does not support."""
    speculation, parallel = context.recipe.speculation, context.recipe.target.parallel
    draft = speculation.draft
    if draft and "parallel" in draft.model_fields_set and draft.parallel.tensor != parallel.tensor:
        message = f"the draft uses the target's {parallel.tensor} GPUs in vLLM, not {draft.parallel.tensor}"
        source = cite(release, "v1/spec_decode/draft_model.py")
        yield Diagnostic("speculation.draft.parallel.tensor", "parallel", message, "remove it", source=source)
    relayed = release.pipeline_targets if speculation.method == "eagle3" else ()
    if parallel.pipeline > 1 and source_architecture(context.sources["target"]) not in relayed:
        message = f"vLLM {release.version} does not support {speculation.method} with pipeline parallelism"
        hint = f"set parallel: {{tensor: {parallel.ranks}}}, or method: none"
        source = "vllm-project/vllm#49355, #57755 and pull 50514, which adds eagle3"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=source)
