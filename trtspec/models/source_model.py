# SPDX-License-Identifier: Apache-2.0
"""A source model with everything that its headers and documents tell: read the same way wherever it is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Matched, Rule, find_parts, match
from trtspec.checkpoint.sharding import Mapping, mapping_problems, uneven
from trtspec.checkpoint.source import Source, load_source
from trtspec.checkpoint.trtllm import EMBEDDING, LM_HEAD
from trtspec.errors import CheckpointError
from trtspec.families.base import family_of, family_version
from trtspec.methods.base import Base, DraftPart, find_method
from trtspec.quant.existing import Existing, existing_quantization, scheme_of
from trtspec.quant.scheme import Scheme, scheme_problems, stage_problems
from trtspec.recipe.schema import ModelSource


@dataclass(frozen=True)
class SourceModel:
    """A source that adds up: its description, what is made of which tensor, and how it is quantized already, if so.

    `family_version` is that of the package that brings the family, "" for a family of ours. `padded_to` is how many
    entries its vocabulary is padded to, 0 where it stays as it is.
    """

    source: Source
    family: str
    family_version: str
    config: ModelConfig
    rules: list[Rule]
    matched: Matched
    existing: Existing | None
    padded_to: int = 0

    def problems(self, wanted: Scheme, mapping: Mapping) -> list[tuple[str, str]]:
        """Return what keeps the model from being stored as wanted, each as (key below `quantization`, words)."""
        if self.existing:
            found = self.existing.problems(wanted, self.config, self.rules)
        else:
            found = scheme_problems(wanted, self.config, self.rules)
        if mapping.pipeline > 1 and not found:
            found = stage_problems(self.scheme(wanted), self.rules)
        return found

    def check(self, wanted: Scheme, mapping: Mapping) -> None:
        """Raise CheckpointError where the model cannot be stored or divided so."""
        self.scheme(wanted)  # of a source that is quantized already it says more than the problems alone
        problems = mapping_problems(self.config, mapping) + [text for _, text in self.problems(wanted, mapping)]
        if problems:
            raise CheckpointError("; ".join(problems), where=str(self.source.root))

    def needs_calibration(self, wanted: Scheme) -> bool:
        """Return whether activations have to be measured: what is quantized already has its scales."""
        return self.existing is None and wanted.needs_activations

    def scheme(self, wanted: Scheme) -> Scheme:
        """Return how it will be stored: as wanted, or as it is already; raises CheckpointError where that differs."""
        return scheme_of(self.existing, wanted, self.config, self.rules)


@dataclass(frozen=True)
class SourcePart:
    """A drafting part that adds up, for the target it was read for; `matched` holds the borrowed tensors too."""

    source: Source
    part: DraftPart
    matched: Matched

    @property
    def rules(self) -> list[Rule]:
        """Return the rules of everything that it adds to the target's checkpoint."""
        return [*self.part.rules, *self.part.borrowed]

    def check(self, mapping: Mapping) -> None:
        """Raise CheckpointError where the part does not fit its target, or cannot be divided so."""
        errors = [misfit.message for misfit in self.part.misfits if misfit.severity == "error"]
        problems = errors + self.mapping_problems(mapping)
        if problems:
            raise CheckpointError("; ".join(problems), where=str(self.source.root))

    def mapping_problems(self, mapping: Mapping) -> list[str]:
        """Return what keeps the part from being divided as its target is, in words."""
        return uneven(self.rules, mapping)


def padded(model: SourceModel, vocab_size: int) -> SourceModel:
    """Return a model whose vocabulary has so many entries: its embedding and its head get rows of zeros.

    Models of one tokenizer are published with different numbers of unused rows (Qwen2.5: 151,936 up to 3B, 152,064
    from 7B on), and engines want those of a pair to be equal (NVIDIA/TensorRT-LLM issue 2789).
    """
    wider = [
        replace(rule, parts=tuple(replace(part, least_rows=vocab_size) for part in rule.parts))
        if rule.target in (EMBEDDING, LM_HEAD)
        else rule
        for rule in model.rules
    ]
    return replace(model, config=replace(model.config, vocab_size=vocab_size), rules=wider, padded_to=vocab_size)


def mapping_of(asked: ModelSource) -> Mapping:
    """Return how a recipe divides a model."""
    return Mapping(asked.parallel.tensor, asked.parallel.pipeline, asked.parallel.embedding)


def scheme_wanted(asked: ModelSource) -> Scheme:
    """Return how a recipe wants a model to be stored."""
    return Scheme(asked.quantization.weights, asked.quantization.kv_cache, tuple(asked.quantization.exclude))


def load_model(root: Path, dtype: str) -> SourceModel:
    """Read the source at `root`; raises CheckpointError for what does not add up, or cannot be taken over."""
    source = load_source(root)
    existing = existing_quantization(source)
    name, family = family_of(source)
    config = family.read(source.reader, dtype)
    rules = family.rules(config)
    matched = match(rules, family.skips(config), source, existing.tensors(rules) if existing else None)
    return SourceModel(source, name, family_version(name), config, rules, matched, existing)


def load_part(
    root: Path, method: str, options: dict[str, Any], target: SourceModel, draft_len: int | None = None
) -> SourcePart:
    """Read the drafting part at `root` for a target; raises CheckpointError for what does not add up.

    `draft_len` is the recipe's; None is the method's own.
    """
    drafting = find_method(method)
    if drafting.read_part is None:
        raise CheckpointError(f"{method} drafts with no part of its own", where=str(root))
    source = load_source(root)
    parsed = drafting.parse(options)
    depth = drafting.extent(parsed, drafting.default_draft_len if draft_len is None else draft_len).depth
    part = drafting.read_part(source, Base(target.config, target.rules, depth), parsed)
    matched = match(part.rules, part.skips, source)
    borrowed = find_parts(part.borrowed, target.source)
    return SourcePart(source, part, Matched(matched.parts | borrowed, matched.skipped))
