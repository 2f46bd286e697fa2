# SPDX-License-Identifier: Apache-2.0
"""Checks of a recipe's speculation method, and of its draft model or draft head against the target."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from trtspec.backends.base import backends_for_method
from trtspec.backends.common.checks import check_features
from trtspec.checkpoints.previews import compare_tokenizers
from trtspec.checkpoints.source_model import SourceModel, parallel_mapping, with_vocab_size
from trtspec.checkpoints.tokenizer import TokenizerMismatch
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import did_you_mean
from trtspec.methods.base import Method, Options, methods
from trtspec.methods.draft_head import LAYERS, SourceHead, read_head
from trtspec.planning.check.inputs import DRAFT, CheckedModel, Findings, Selection, find_source, read_checkpoint
from trtspec.planning.check.models import check_format, check_rows
from trtspec.planning.prediction.speedup import Passes, drafter_passes, expected_tokens
from trtspec.recipe.schema import ModelSource
from trtspec.recipe.validate import explain_value

OPTIONS = "speculation.options"


def check_method(findings: Findings, chosen: Selection, method: Method, target: SourceModel | None) -> Options | None:
    """Check the recipe against the method's requirements; return the method's options, or None if they are invalid."""
    speculation, name = chosen.recipe.speculation, chosen.recipe.speculation.method
    if method.drafts_with != "nothing" and speculation.draft is None:
        what = "a model" if method.drafts_with == "model" else "a head trained for the target"
        hint = "set speculation.draft; trtspec train creates the drafts listed in docs/train.md"
        findings.error("speculation", "no-draft", f"{name} requires {what} as draft", hint)
    if method.drafts_with == "nothing" and speculation.draft is not None:
        hint = _unused_draft_hint(findings, speculation.draft)
        findings.error("speculation.draft", "unused-draft", f"{name} does not use a draft", hint)
    if speculation.draft_len is not None and speculation.draft_len not in method.draft_lens:
        span = "does not use draft_len; its options determine the length"
        if lens := method.draft_lens:
            span = f"takes {lens[0]}..{lens[-1]} draft tokens"
        findings.error("speculation.draft_len", "out-of-range", f"{name} {span}")
    if chosen.choice and chosen.backend and name not in chosen.backend.methods():
        if others := ", ".join(backends_for_method(name)):
            findings.error("speculation.method", "method", f"{name} runs on {others}, not on {chosen.choice.name}")
        else:
            message, hint = f"{name} runs on no backend", "register its drafter or engines as in docs/extending.md"
            findings.error("speculation.method", "method", message, hint)
    options = _read_options(findings, chosen, method)
    if options:
        _check_options(findings, chosen, method, options, target)
    if options and chosen.backend:
        findings.add(check_features(speculation, method, options, chosen.backend))
    return options


def _unused_draft_hint(findings: Findings, asked: ModelSource) -> str:
    """Return the remedy for a draft that the recipe's method does not use, with the method of a draft head."""
    source = find_source(Findings(findings.loaded), DRAFT, asked)  # a checkpoint that cannot be read is no finding here
    heads = {name: each.suggest for name, each in methods().items() if each.drafts_with == "head" and each.suggest}
    found = [(suggested.rank, name) for name, ask in heads.items() if source and (suggested := ask(source))]
    return f"use method: {min(found)[1]}, or remove draft" if found else "remove draft"


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


# The acceptance rate at which a draft model has to pay at batch 1. Published rates are 0.5 to 0.9 (arXiv:2211.17192,
# section 4.2), and 0.88 fits NVIDIA's measurements of Llama pairs (docs/planning.md). The ratio of sizes alone is no
# limit: by theorem 3.8, whether a pair pays depends on the acceptance rate and on draft_len too. The theorem omits a
# step's other work, which takes a quarter of a pass of 8B on an H100 (`step_s` in docs/planning.md).
GOOD_RATE, LEAST_SPEEDUP = 0.8, 1.25
TEXT_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")  # special tokens that drafts do not read


def check_draft(
    findings: Findings, chosen: Selection, options: Options | None, target: CheckedModel, *, has_tokenizer: bool
) -> CheckedModel:
    """Check the draft of a recipe; return it as it will be converted, or without a source if it cannot be read."""
    asked, method = chosen.recipe.speculation.draft, chosen.method
    if asked is None or (method and method.drafts_with == "nothing"):
        return CheckedModel()
    if method and method.drafts_with == "head":
        return _check_head(findings, chosen, options, target, asked)
    draft = read_checkpoint(findings, chosen, DRAFT, asked)
    if draft.model is None:
        return draft
    check_format(findings, chosen, "speculation.draft", asked, draft.model)
    if method:
        findings.add(each.below("speculation.draft") for each in method.check_model(draft.model.source))
    check_rows(findings, DRAFT, draft.model.source, draft.model.config.vocab_size)
    if target.model is None:
        return draft
    model, is_other = draft.model, chosen.maps_vocabularies and _is_other(chosen, target.model, draft.model)
    if not is_other:
        model = _with_vocabulary(findings, chosen, target.model, model, has_tokenizer)
    _check_pair(findings, chosen, target.model, draft.model)
    return CheckedModel(draft.source, model, has_other_vocabulary=is_other)


def _check_pair(findings: Findings, chosen: Selection, target: SourceModel, draft: SourceModel) -> None:
    ours, theirs = target.config, draft.config
    limit = chosen.positions(theirs)
    if limit < min(chosen.recipe.engine.max_seq_len, chosen.positions(ours)):
        message = f"the draft has {limit} positions, fewer than engine.max_seq_len"
        findings.error(DRAFT, "positions", message, f"set engine.max_seq_len to at most {limit}")
    _check_cost(findings, chosen, ours.num_parameters, theirs.num_parameters)


def good_speedup(passes: Passes, draft_len: int, cost: float) -> float:
    """Return the speed-up at batch 1 if GOOD_RATE of the drafted tokens are accepted (arXiv:2211.17192, theorem 3.8).

    `cost` is the time of a drafter's pass in target passes, about the ratio of their parameters.
    """
    number, _ = drafter_passes(passes, draft_len, 1.0)
    return expected_tokens(GOOD_RATE, draft_len) / (1.0 + number * cost)


def _check_cost(findings: Findings, chosen: Selection, target: int, draft: int) -> None:
    """Warn if a draft of that many parameters takes about as long as it saves, even if it is accepted often."""
    method, recipe = chosen.method, chosen.recipe
    asked, draft_len = recipe.speculation.draft, recipe.speculation.draft_len
    draft_len = draft_len or (method.default_draft_len if method else 0)
    if method is None or asked is None or not draft_len:
        return
    target_gpus = recipe.target.parallel.tensor
    draft_gpus = asked.parallel.tensor if chosen.converts else target_gpus  # other engines divide it like the target
    speedup = good_speedup(method.draft_passes, draft_len, draft / draft_gpus / (target / target_gpus))
    if speedup < LEAST_SPEEDUP:
        sizes = f"{target / 1e6:,.1f} M and {draft / 1e6:,.1f} M parameters"
        sizes += f", on {target_gpus} GPUs and {draft_gpus}" if target_gpus != draft_gpus else ""
        message = (
            f"the target is {target / draft:.1f} times the draft ({sizes}): even if {GOOD_RATE:.0%} of the drafted "
            f"tokens are accepted, {draft_len} per step make it at most {speedup:.2f} times as fast"
        )
        hint = "use a smaller draft, or measure with trtspec bench"
        if draft > target and method.drafts_with == "model":
            message, hint = f"the draft is larger than the target ({sizes})", "exchange target and draft"
        findings.warn(DRAFT, "size-ratio", message, hint)


def _is_other(chosen: Selection, target: SourceModel, draft: SourceModel) -> bool:
    """Return True if the draft's token ids differ from the target's, or its embedding cannot be resized."""
    sources, are_equal = (target.source, draft.source), target.config.vocab_size == draft.config.vocab_size
    if not (are_equal or chosen.converts):
        return True
    if not all((each.root / "tokenizer.json").is_file() for each in sources):
        return draft.config.vocab_size > target.config.vocab_size
    try:
        compare_tokenizers(*sources)
    except TokenizerMismatch:
        return True
    except (TrtspecError, OSError):
        return False  # `_with_vocabulary` reports the error
    return False


def _with_vocabulary(
    findings: Findings, chosen: Selection, target: SourceModel, draft: SourceModel, has_tokenizer: bool
) -> SourceModel:
    """Check that both models use the same token ids; return the draft with the target's number of embedding rows.

    Models with the same tokenizer are published with different numbers of unused rows. Rows that the target lacks are
    removed from the draft; missing rows are filled with zeros.
    """
    ours, theirs = target.config.vocab_size, draft.config.vocab_size
    can_cut = chosen.converts and has_tokenizer and (draft.source.root / "tokenizer.json").is_file()
    numbers = {key: value for key, value in draft.source.config.items() if isinstance(value, int)}
    special = (key for key in numbers if key.endswith(("_token", "_token_id")) and key not in TEXT_TOKENS)
    # Special tokens that the draft reads, such as the mask token of parallel drafts, must not be removed.
    can_cut = can_cut and not any(numbers[key] >= ours for key in special)
    if (theirs > ours and not can_cut) or (theirs < ours and not chosen.converts):
        message = f"the draft has {theirs} vocabulary entries, the target {ours}"
        findings.error(DRAFT, "vocabulary", message, "a draft must share the target's vocabulary")
    elif has_tokenizer:
        findings.attempt(DRAFT, "tokenizer", lambda: compare_tokenizers(target.source, draft.source))
    return with_vocab_size(draft, ours) if theirs != ours and chosen.converts else draft


def _check_head(
    findings: Findings, chosen: Selection, options: Options | None, target: CheckedModel, asked: ModelSource
) -> CheckedModel:
    """Check a draft head against the target with which it will be stored."""
    speculation, model = chosen.recipe.speculation, target.model
    for key in sorted(asked.model_fields_set & {"dtype", "quantization", "parallel"}):
        message = f"{speculation.method} is stored with the target, with the same dtype and parallelism"
        findings.error(f"speculation.draft.{key}", "not-supported", message, f"remove {key}")
    if options is None or (model is None and chosen.converts):
        return CheckedModel()
    source = find_source(findings, DRAFT, asked)
    if source is None or model is None:  # without a parsed target, the backend checks the head
        return CheckedModel(source)
    method, given, draft_len = speculation.method, speculation.options, speculation.draft_len
    head = findings.attempt(DRAFT, "checkpoint", lambda: read_head(source, method, given, model, draft_len))
    if head is None:
        return CheckedModel()
    if all((one / "tokenizer.json").is_file() for one in (source.root, model.source.root)):
        findings.attempt(DRAFT, "tokenizer", lambda: compare_tokenizers(model.source, source))
    found = head.diagnose(parallel_mapping(chosen.recipe.target))
    if not chosen.converts:  # the engine creates every layer of config.json; missing ones stay uninitialized
        found = [replace(each, severity="error") if each.code == LAYERS else each for each in found]
    findings.add(found)
    _check_positions(findings, chosen, head, model)
    return CheckedModel(source, head=head)


def _check_positions(findings: Findings, chosen: Selection, head: SourceHead, target: SourceModel) -> None:
    """Warn if texts can be longer than those of a head's configuration; published heads have fewer positions."""
    positions = min((layer.max_positions for layer in head.head.models.values()), default=None)
    longest = min(chosen.recipe.engine.max_seq_len, target.config.max_positions)
    if positions is not None and positions < longest:
        message = f"the head has {positions} positions, but texts may have {longest} tokens"
        hint = "acceptance may be lower beyond them; measure on long texts, or lower engine.max_seq_len"
        findings.warn(DRAFT, "positions", message, hint)
