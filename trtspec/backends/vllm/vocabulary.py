# SPDX-License-Identifier: Apache-2.0
"""Draft models with another vocabulary: vLLM drafts shared tokens (use_heterogeneous_vocab, arXiv:2502.05202)."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import releases
from trtspec.checkpoints.tokenizer import check_tokenizers
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError

FIELD = "use_heterogeneous_vocab"


def supports_heterogeneous_vocab(version: str, method: str) -> bool:
    """Return whether a release supports a draft model whose tokens differ from the target's."""
    return method == "draft_target" and FIELD in releases()[version].fields


def has_other_vocabulary(context: PlanContext) -> bool:
    """Return whether the draft model's vocabulary differs from the target's in size or tokens."""
    return _has_other_rows(context) or _has_other_tokens(context)


def _has_other_rows(context: PlanContext) -> bool:
    ours, theirs = context.target_config, context.draft_config
    return bool(ours and theirs and ours.vocab_size != theirs.vocab_size)


def _has_other_tokens(context: PlanContext) -> bool:
    target, draft = (context.sources[role].root for role in ("target", "draft"))
    if not all((root / "tokenizer.json").is_file() for root in (target, draft)):
        return False
    try:
        check_tokenizers(target, draft)
    except TrtspecError:
        return True
    return False


def check_vocabulary(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield a warning for a draft model with another vocabulary, which can draft only shared tokens."""
    if supports_heterogeneous_vocab(context.version, context.recipe.speculation.method) and has_other_vocabulary(
        context
    ):
        message = "draft and target have different vocabularies: vLLM drafts only shared tokens, on its V1 model runner"
        ours, theirs = context.target_config, context.draft_config
        if ours and theirs and not _has_other_tokens(context):
            message = (
                f"draft and target share a tokenizer, but have {theirs.vocab_size} and {ours.vocab_size} rows: vLLM"
            )
            message += " maps the shared tokens, on its V1 model runner"
            hint = "to avoid this, save both with equal vocabularies: resize_token_embeddings in transformers"
            yield Diagnostic("speculation.draft.model", "vocabulary", message, hint, "warning", source=FIELD)
            return
        hint = "a draft of the target's family is accepted more often"
        yield Diagnostic("speculation.draft.model", "vocabulary", message, hint, "warning", source=FIELD)
