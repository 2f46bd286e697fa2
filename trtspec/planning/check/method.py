# SPDX-License-Identifier: Apache-2.0
"""Check a method's requirements: draft or no draft, draft length, options, and a backend that supports it."""

from __future__ import annotations

from pydantic import ValidationError

from trtspec.backends.base import backends_for_method
from trtspec.backends.feature_checks import check_features
from trtspec.checkpoints.source_model import SourceModel
from trtspec.core.registry import did_you_mean
from trtspec.methods.base import Method, Options
from trtspec.planning.check.collector import Findings
from trtspec.planning.check.selection import Selection
from trtspec.recipe.validate import explain_value

OPTIONS = "speculation.options"


def check_method(findings: Findings, chosen: Selection, method: Method, target: SourceModel | None) -> Options | None:
    """Check the method's requirements; return its options, or None if they are invalid."""
    speculation, name = chosen.recipe.speculation, chosen.recipe.speculation.method
    _check_draft(findings, chosen, method)
    if speculation.draft_len is not None and speculation.draft_len not in method.draft_lens:
        lens = method.draft_lens
        span = (
            f"takes {lens[0]}..{lens[-1]} draft tokens"
            if lens
            else "does not use draft_len; its options determine the length"
        )
        findings.error("speculation.draft_len", "out-of-range", f"{name} {span}")
    if chosen.choice and chosen.backend and name not in chosen.backend.methods():
        others = ", ".join(backends_for_method(name)) or "no backend"
        findings.error("speculation.method", "method", f"{name} runs on {others}, not on {chosen.choice.name}")
    options = _read_options(findings, chosen, method)
    if options:
        _check_options(findings, chosen, method, options, target)
    if options and chosen.backend:
        findings.add(check_features(speculation, method, options, chosen.backend))
    return options


def _check_draft(findings: Findings, chosen: Selection, method: Method) -> None:
    draft, name = chosen.recipe.speculation.draft, chosen.recipe.speculation.method
    if method.drafts_with != "nothing" and draft is None:
        what = "a model" if method.drafts_with == "model" else "a head trained for the target"
        hint = "set speculation.draft; trtspec train creates the drafts listed in docs/train.md"
        findings.error("speculation", "no-draft", f"{name} requires {what} as draft", hint)
    if method.drafts_with == "nothing" and draft is not None:
        findings.error("speculation.draft", "unused-draft", f"{name} does not use a draft", "remove draft")


def _read_options(findings: Findings, chosen: Selection, method: Method) -> Options | None:
    name, given = chosen.recipe.speculation.method, chosen.recipe.speculation.options
    try:
        return method.options.model_validate(given)
    except ValidationError as error:
        for finding in error.errors(include_url=False):
            key = ".".join(map(str, finding["loc"]))
            if finding["type"] == "extra_forbidden":
                known = list(method.options.model_fields)
                message = f"{name} has no option {key!r} ({', '.join(known) or 'it has none'})"
                findings.error(f"{OPTIONS}.{key}", "unknown-key", message, did_you_mean(key, known))
            else:
                findings.error(f"{OPTIONS}.{key}", *explain_value(finding, key))
    return None


def _check_options(
    findings: Findings, chosen: Selection, method: Method, options: Options, target: SourceModel | None
) -> None:
    if options.acceptance != "exact" and chosen.recipe.gates.lossless:
        message = "lossy acceptance changes the output, but gates.lossless is true"
        hint = "set gates.lossless: false to accept output that differs from the target's, or remove lossy"
        findings.error(f"{OPTIONS}.lossy", "lossy", message, hint)
    if target:
        findings.add(each.below(OPTIONS) for each in method.check_options(options, target.config))
