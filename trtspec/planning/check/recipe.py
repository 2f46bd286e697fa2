# SPDX-License-Identifier: Apache-2.0
"""Check of a whole recipe without loading tensors; all diagnostics are located in the recipe file.

Defines the order of the checks, of which the backend's are last, and creates the context for the plan. Reads only
configs and headers, and does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.common.checks import check_device_and_dtype, check_structured_output, check_warmup
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.generation_config import EndIds
from trtspec.core.diagnostics import Diagnostic, sort_position
from trtspec.core.gpus import find_gpu
from trtspec.engine.prompts.load import read_prompts
from trtspec.methods.base import Options
from trtspec.planning.check.drafting import check_draft, check_method
from trtspec.planning.check.inputs import TARGET, CheckedModel, Findings, Selection, read_checkpoint, resolve_selection
from trtspec.planning.check.models import check_defaults, check_end_ids, check_target, max_text_tokens, vocabulary_rows
from trtspec.planning.memory import CODE as MEMORY
from trtspec.planning.memory import check_memory
from trtspec.planning.prediction.predict import warn_if_slower
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.resolve import find_unsafe_overrides
from trtspec.recipe.schema import Recipe


@dataclass(frozen=True)
class CheckResult:
    """Diagnostics of a recipe, the context for its plan (None if it cannot be planned) and the target's end ids."""

    diagnostics: list[Diagnostic]
    context: PlanContext | None
    end_ids: EndIds | None = None  # None if they cannot be read

    @property
    def errors(self) -> list[Diagnostic]:
        """Return the diagnostics of severity "error", which prevent a build."""
        return [each for each in self.diagnostics if each.severity == "error"]


def check_recipe(loaded: LoadedRecipe, *, will_prepare: bool = False) -> CheckResult:
    """Check a recipe against its checkpoints, method and backend.

    With `will_prepare`, a source that a build will download is not an error, and the checks that read it are skipped.
    """
    recipe, findings = loaded.recipe, Findings(loaded, will_prepare)
    chosen = resolve_selection(findings)
    target = read_checkpoint(findings, chosen, TARGET, recipe.target)
    has_tokenizer = check_target(findings, chosen, target)
    end_ids = None
    if target.source:
        end_ids = check_end_ids(findings, TARGET, target.source)
        edits_logits = chosen.backend is None or chosen.backend.edits_logits
        check_defaults(findings, TARGET, target.source, vocabulary_rows(target), edits_logits=edits_logits)
    options = check_method(findings, chosen, chosen.method, target.model) if chosen.method else None
    draft = check_draft(findings, chosen, options, target, has_tokenizer=has_tokenizer)
    if chosen.backend:
        findings.add(check_device_and_dtype(recipe, chosen.backend))
        findings.add(check_warmup(recipe, chosen.backend))
        findings.add(check_structured_output(recipe, chosen.backend))
    context = _context(chosen, options, target, draft)
    if context and chosen.backend:
        findings.add(chosen.backend.check(context))
        if not any(each.code == MEMORY for each in findings.diagnostics):
            findings.add(check_memory(context, chosen.backend))
        if not findings.count_errors():
            findings.add(warn_if_slower(context))
    _check_rest(findings, recipe)
    _warn_of_loosened(findings, recipe, options)
    findings.diagnostics.sort(key=sort_position)
    return CheckResult(findings.diagnostics, context, end_ids)


def _check_rest(findings: Findings, recipe: Recipe) -> None:
    """Check the plugins, the prompts of gates and, unless the backend has reported it, the GPU's name."""
    gpu, prompts = recipe.engine.gpu, recipe.gates.prompts
    if gpu and not any(each.path == "engine.gpu" for each in findings.diagnostics):
        findings.attempt("engine.gpu", "gpu", lambda: find_gpu(gpu))
    if recipe.plugins:
        from trtspec.backends.common.steps import plan_recipe_library  # lazy: few recipes have plugins

        findings.attempt("plugins", "plugin", lambda: plan_recipe_library(recipe.plugins, gpu or ""))
    if prompts:
        findings.attempt("gates.prompts", "prompts", lambda: read_prompts(Path(prompts)))


def _warn_of_loosened(findings: Findings, recipe: Recipe, options: Options | None) -> None:
    """Warn about each key that is less strict than its default, and about lossy acceptance that no gate forbids."""
    hint = "remove it unless it is intended"
    for each in find_unsafe_overrides(recipe):
        findings.warn(each.path, "loosened", f"{each}; the default is safer", hint)
    if options and options.acceptance != "exact" and not recipe.gates.lossless:
        message = f"{options.acceptance} acceptance: the output differs from the target's"
        findings.warn("speculation.options.lossy", "loosened", message, hint)


def _context(
    chosen: Selection, options: Options | None, target: CheckedModel, draft: CheckedModel
) -> PlanContext | None:
    """Return the context for the plan, or None if a part of it is missing."""
    speculation, method = chosen.recipe.speculation, chosen.method
    if method is None or options is None or chosen.choice is None or target.source is None:
        return None
    if (chosen.converts and target.model is None) or (speculation.draft is not None and draft.source is None):
        return None
    asked = chosen.recipe.engine.max_seq_len  # explicit lengths were checked; the default is cut to the positions
    max_seq_len = min(asked, max_text_tokens(chosen, target) or asked)
    return PlanContext(
        recipe=chosen.recipe.with_engine(max_seq_len=max_seq_len),
        choice=chosen.choice,
        method=method,
        options=options,
        draft_shape=method.shape_for(options, speculation.draft_len),
        sources={"target": target.source} | ({"draft": draft.source} if draft.source else {}),
        target=target.model,
        draft=draft.model,
        head=draft.head,
        translates=draft.has_other_vocabulary,
    )
