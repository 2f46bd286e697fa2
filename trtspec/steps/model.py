# SPDX-License-Identifier: Apache-2.0
"""A source model with everything that its headers and documents tell: read the same way wherever it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Matched, Rule, match
from trtspec.checkpoint.sharding import Mapping, mapping_problems
from trtspec.checkpoint.source import Source, load_source
from trtspec.errors import CheckpointError
from trtspec.families.base import family_of, family_version
from trtspec.quant.existing import Existing, existing_quantization, scheme_of
from trtspec.quant.scheme import Scheme, scheme_problems, stage_problems
from trtspec.recipe.schema import ModelSource


@dataclass(frozen=True)
class SourceModel:
    """A source that adds up: its description, what is made of which tensor, and how it is quantized already, if so.

    `family_version` is that of the package that brings the family, "" for a family of ours.
    """

    source: Source
    family: str
    family_version: str
    config: ModelConfig
    rules: list[Rule]
    matched: Matched
    existing: Existing | None

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
