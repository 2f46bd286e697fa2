# SPDX-License-Identifier: Apache-2.0
"""A draft model or draft head beside its target."""

from __future__ import annotations

from dataclasses import replace

from trtspec.checkpoints.hub_metadata import compare_tokenizers
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel, mapping_of, padded
from trtspec.checkpoints.tokenizer import TokenizersDiffer
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import Options
from trtspec.methods.head_checks import LAYERS
from trtspec.methods.source_head import read_head
from trtspec.planning.check.collector import Findings
from trtspec.planning.check.models import check_format
from trtspec.planning.check.selection import Chosen
from trtspec.planning.check.sources import DRAFT, Checkpoint, find_source, read_checkpoint
from trtspec.planning.check.tokenizers import check_rows
from trtspec.recipe.schema import ModelSource

# Smaller drafts are rarely right, larger ones rarely cheap: what published pairs use.
LEAST_RATIO = 10  # a larger draft takes too much of a step; a smaller one costs nothing, and measuring tells its worth
TEXT_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")  # that no draft reads by itself


def check_draft(
    findings: Findings, chosen: Chosen, options: Options | None, target: Checkpoint, *, has_tokenizer: bool
) -> Checkpoint:
    """Check the draft that a recipe names; return it as it is converted, with no source where that cannot be."""
    asked, method = chosen.recipe.speculation.draft, chosen.method
    if asked is None or (method and method.drafts_with == "nothing"):
        return Checkpoint()
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
    return Checkpoint(draft.source, model, has_other_vocabulary=is_other)


def _check_pair(findings: Findings, chosen: Chosen, target: SourceModel, draft: SourceModel) -> None:
    ours, theirs = target.config, draft.config
    limit = chosen.positions(theirs)
    if limit < min(chosen.recipe.engine.max_seq_len, chosen.positions(ours)):
        message = f"the draft has {limit} positions, fewer than engine.max_seq_len"
        findings.error(DRAFT, "positions", message, f"set engine.max_seq_len to at most {limit}")
    ratio = ours.num_parameters / theirs.num_parameters
    if ratio < LEAST_RATIO:
        sizes = f"{ours.num_parameters / 1e6:,.1f} M and {theirs.num_parameters / 1e6:,.1f} M parameters"
        usual = f"a draft that pays is usually {LEAST_RATIO} times smaller"
        message = f"the target is {ratio:.1f} times the draft ({sizes}); {usual}"
        findings.warn(DRAFT, "size-ratio", message)


def _is_other(chosen: Chosen, target: SourceModel, draft: SourceModel) -> bool:
    """Return whether a draft's ids mean other texts than the target's, or the backend cannot fit its rows to them."""
    sources, are_equal = (target.source, draft.source), target.config.vocab_size == draft.config.vocab_size
    if not (are_equal or chosen.converts):
        return True
    if not all((each.root / "tokenizer.json").is_file() for each in sources):
        return draft.config.vocab_size > target.config.vocab_size
    try:
        compare_tokenizers(*sources)
    except TokenizersDiffer:
        return True
    except (TrtspecError, OSError):
        return False  # reported by those who compare them next
    return False


def _with_vocabulary(
    findings: Findings, chosen: Chosen, target: SourceModel, draft: SourceModel, has_tokenizer: bool
) -> SourceModel:
    """Check that the same ids mean the same texts; return the draft with as many rows as the target.

    Models of one tokenizer are published with different numbers of unused rows: rows that the target lacks are left
    out, and missing ones are zeros.
    """
    ours, theirs = target.config.vocab_size, draft.config.vocab_size
    can_cut = chosen.converts and has_tokenizer and (draft.source.root / "tokenizer.json").is_file()
    can_cut = can_cut and not _reads_beyond(draft.source, ours)
    if (theirs > ours and not can_cut) or (theirs < ours and not chosen.converts):
        message = f"the draft has {theirs} vocabulary entries, the target {ours}"
        findings.error(DRAFT, "vocabulary", message, "a draft has to share the target's vocabulary")
    elif has_tokenizer:
        findings.attempt(DRAFT, "tokenizer", lambda: compare_tokenizers(target.source, draft.source))
    return padded(draft, ours) if theirs != ours and chosen.converts else draft


def _reads_beyond(source: Source, rows: int) -> bool:
    """Return whether a draft reads a token of its own behind so many rows, as parallel drafts read a mask token."""
    return any(
        isinstance(value, int) and value >= rows
        for key, value in source.config.items()
        if key.endswith(("_token", "_token_id")) and key not in TEXT_TOKENS
    )


def _check_head(
    findings: Findings, chosen: Chosen, options: Options | None, target: Checkpoint, asked: ModelSource
) -> Checkpoint:
    """Check a draft head against its target, which it is stored with."""
    speculation, model = chosen.recipe.speculation, target.model
    for key in sorted(asked.model_fields_set & {"dtype", "quantization", "parallel"}):
        message = f"{speculation.method} is stored with the target, in its dtype and divided as it is"
        findings.error(f"speculation.draft.{key}", "not-supported", message, f"remove {key}")
    if options is None or (model is None and chosen.converts):
        return Checkpoint()
    source = find_source(findings, DRAFT, asked)
    if source is None or model is None:  # no model: the backend tells how the head fits
        return Checkpoint(source)
    method, given, draft_len = speculation.method, speculation.options, speculation.draft_len
    head = findings.attempt(DRAFT, "checkpoint", lambda: read_head(source, method, given, model, draft_len))
    if head is None:
        return Checkpoint()
    if all((one / "tokenizer.json").is_file() for one in (source.root, model.source.root)):
        findings.attempt(DRAFT, "tokenizer", lambda: compare_tokenizers(model.source, source))
    found = head.diagnose(mapping_of(chosen.recipe.target))
    if not chosen.converts:  # the engine makes as many layers as config.json has, and fills some of them with nothing
        found = [replace(each, severity="error") if each.code == LAYERS else each for each in found]
    findings.add(found)
    return Checkpoint(source, head=head)
