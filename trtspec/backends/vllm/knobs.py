# SPDX-License-Identifier: Apache-2.0
"""Whether a release of vLLM verifies, and shortens its drafts, as the recipe says."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import PARALLEL, VllmRelease, cite, having
from trtspec.backends.vllm.vocabulary import has_other_vocabulary
from trtspec.core.diagnostics import Diagnostic

SCHEDULE, VERIFY = "speculation.schedule", "speculation.verify"
LENGTHS = "num_speculative_tokens_per_batch_size"
# their proposers assert the full length, or lay out a block of it once
ONE_LENGTH = ("suffix", "medusa", "dflash", "dspark", *PARALLEL)


def check_knobs(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield what a release would not do of `schedule` and `verify`."""
    speculation = context.recipe.speculation
    if speculation.schedule and LENGTHS not in release.fields:
        message = f"vLLM {release.version} drafts one length at every batch size"
        hint = having(lambda each: LENGTHS in each.fields)
        yield Diagnostic(SCHEDULE, "version", message, hint, source=cite(release))
    elif speculation.schedule and speculation.method in ONE_LENGTH:
        message = f"vLLM drafts one length with {speculation.method}, whatever the batch size"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule", source=cite(release, "v1/spec_decode"))
    if speculation.verify == "block" and (message := _why_no_block(context, release)):
        hint = "set verify: standard" if "runs_v2" in release.does else having(lambda each: "runs_v2" in each.does)
        yield Diagnostic(VERIFY, "not-supported", message, hint, source=cite(release, "v1/sample/rejection_sampler.py"))


def _why_no_block(context: PlanContext, release: VllmRelease) -> str:
    """Return why drafts would be verified token by token; "" where they are verified as a block.

    vLLM says nothing where its V1 model runner, which knows no blocks, runs a recipe that asks for them.
    """
    method = context.recipe.speculation.method
    if "block" not in release.rules or "runs_v2" not in release.does:
        return f"vLLM {release.version} does not verify blocks for every target"
    if method in ("ngram", "suffix"):
        return f"{method} has no probabilities of its own, so a block is accepted as its tokens are"
    v1 = release.methods[method] in release.not_in_v2 or method in PARALLEL
    if v1 or (context.method.drafts_with == "model" and has_other_vocabulary(context)):
        return f"vLLM runs this draft on its V1 model runner, which verifies {method} token by token"
    return ""
