# SPDX-License-Identifier: Apache-2.0
"""Check whether a release of vLLM supports the recipe's `verify` and `schedule`."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import PARALLEL, VllmRelease, cite, having
from trtspec.backends.vllm.vocabulary import has_other_vocabulary
from trtspec.core.diagnostics import Diagnostic

SCHEDULE, VERIFY = "speculation.schedule", "speculation.verify"
LENGTHS = "num_speculative_tokens_per_batch_size"
# their proposers assert the full length, or allocate a block of it once
ONE_LENGTH = ("suffix", "medusa", "dflash", "dspark", *PARALLEL)


def check_features(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
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
    method = context.recipe.speculation.method
    if "block" not in release.rules or "runs_v2" not in release.does:
        return f"vLLM {release.version} does not support block verification for every target"
    if method in ("ngram", "suffix"):
        return (
            f"{method} does not provide draft probabilities, so block verification accepts the same tokens as standard"
        )
    v1 = release.methods[method] in release.not_in_v2 or method in PARALLEL
    if v1 or (context.method.drafts_with == "model" and has_other_vocabulary(context)):
        return f"vLLM runs this drafter on its V1 model runner, which verifies {method} token by token"
    return ""
