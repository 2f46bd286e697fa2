# SPDX-License-Identifier: Apache-2.0
"""A source model with everything derived from its headers and documents, read once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.prequantized import Prequantized, QuantFormat, read_prequantized, resolve_scheme
from trtspec.checkpoints.quant_scheme import Scheme, scheme_problems, stage_problems
from trtspec.checkpoints.rules import Matched, Rule, SourceTensor, family_version, find_family, match
from trtspec.checkpoints.sharding import ParallelMapping, mapping_problems, valid_sizes_hint
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.tied_embeddings import UNREAD, UNTIED, Ties, compare_ties
from trtspec.checkpoints.trtllm import EMBEDDING, LM_HEAD
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import ModelSource

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
)  # fmt: skip


@dataclass(frozen=True)
class SourceModel:
    """A supported model: its source, family, config, tensor rules, and quantization if any.

    `family_version` is the version of the package that provides the family, "" for a built-in one. `padded_to` is the
    size to which its vocabulary is padded or cut, 0 if unchanged.
    """

    source: Source
    family: str
    family_version: str
    config: ModelConfig
    rules: list[Rule]
    matched: Matched
    prequantized: Prequantized | None
    padded_to: int = 0
    ties: Ties = UNTIED

    def problems(self, wanted: Scheme, mapping: ParallelMapping) -> list[tuple[str, str]]:
        """Return why the model cannot be converted to `wanted`, as (key below `quantization`, message) pairs."""
        if self.prequantized:
            found = self.prequantized.problems(wanted, self.config, self.rules)
        else:
            found = scheme_problems(wanted, self.config, self.rules)
        if mapping.pipeline > 1 and not found:
            found = stage_problems(self.scheme(wanted), self.rules)
        return found

    def diagnose(self, wanted: Scheme, mapping: ParallelMapping, *, converts: bool) -> list[Diagnostic]:
        """Return diagnostics about quantizing and dividing the model; their paths are relative to the recipe's model.

        With `converts`, the backend converts the model; otherwise the engine reads the checkpoint itself.
        """
        hint = valid_sizes_hint(self.config, mapping)
        found = [Diagnostic("parallel", "parallel", each, hint) for each in mapping_problems(self.config, mapping)]
        found += self.ties.diagnose(converts=converts)
        if converts:
            problems = self.problems(wanted, mapping)
            found += [Diagnostic(f"quantization.{key}", "quantization", message) for key, message in problems]
        return found

    def check(self, wanted: Scheme, mapping: ParallelMapping) -> None:
        """Raise CheckpointError if the model cannot be quantized or divided as requested."""
        self.scheme(wanted)  # raises a more detailed error for a quantized source
        problems = mapping_problems(self.config, mapping) + [text for _, text in self.problems(wanted, mapping)]
        if problems:
            raise CheckpointError(
                "; ".join(problems), where=str(self.source.root), hint="change quantization or parallel in the recipe"
            )

    def needs_calibration(self, wanted: Scheme) -> bool:
        return self.prequantized is None and wanted.needs_activations

    def scheme(self, wanted: Scheme) -> Scheme:
        """Return the scheme of the converted model; raise CheckpointError if source and recipe conflict."""
        return resolve_scheme(self.prequantized, wanted, self.config, self.rules)

    def format(self, wanted: Scheme) -> QuantFormat:
        """Return the storage format of the converted model; unquantized if `scheme` raises."""
        try:
            scheme = self.scheme(wanted)
        except CheckpointError:  # reported by a separate diagnostic
            return QuantFormat()
        return QuantFormat(scheme.weights, scheme.kv_cache)


def with_vocab_size(model: SourceModel, vocab_size: int) -> SourceModel:
    """Return a model with `vocab_size` entries, adding rows of zeros to embedding and LM head, or removing rows.

    Models with the same tokenizer are published with different numbers of unused rows (Qwen2.5: 151,936 up to 3B,
    152,064 from 7B on), and engines require the same number for target and draft (NVIDIA/TensorRT-LLM issue 2789).
    """
    fitted = [
        replace(rule, sources=tuple(_with_rows(source, vocab_size) for source in rule.sources))
        if rule.target in (EMBEDDING, LM_HEAD)
        else rule
        for rule in model.rules
    ]
    return replace(model, config=replace(model.config, vocab_size=vocab_size), rules=fitted, padded_to=vocab_size)


def _with_rows(source: SourceTensor, rows: int) -> SourceTensor:
    if rows >= source.shape[0]:
        return replace(source, least_rows=rows)
    return replace(source, shape=(rows, *source.shape[1:]), stored_rows=source.stored_rows or source.shape[0])


def parallel_mapping(asked: ModelSource) -> ParallelMapping:
    return ParallelMapping(asked.parallel.tensor, asked.parallel.pipeline, asked.parallel.embedding)


def requested_scheme(asked: ModelSource) -> Scheme:
    return Scheme(asked.quantization.weights, asked.quantization.kv_cache, tuple(asked.quantization.exclude))


def read_model(source: Source, dtype: str) -> SourceModel:
    """Read a source's model; raise CheckpointError if it is incomplete or unsupported."""
    prequantized = read_prequantized(source)
    name, family = find_family(source)
    config = family.read(source.reader, dtype)
    ties = UNTIED
    if config.tied_embeddings:
        tensors = {
            rule.target: _with_stored_names(rule, source)
            for rule in family.rules(replace(config, tied_embeddings=False))
        }
        ties = compare_ties(source, tensors[EMBEDDING].sources[0].name, tensors[LM_HEAD].sources[0].name)
        config = replace(config, tied_embeddings=not ties.differ)
    rules = [_with_stored_names(rule, source, ties.only_head) for rule in family.rules(config)]
    try:
        matched = match(rules, family.skips(config), source, prequantized.tensors(rules) if prequantized else None)
    except CheckpointError as error:
        if lacking := [key for key in SIZES if key not in source.config]:
            keys = ", ".join(lacking)
            error.hint = (
                f"config.json lacks {keys}, so the defaults of transformers' class were used: add the missing keys"
            )
        raise
    if ties.are_unread:
        skipped = {key: UNREAD if key == ties.head else why for key, why in matched.skipped.items()}
        matched = replace(matched, skipped=skipped)
    return SourceModel(source, name, family_version(name), config, rules, matched, prequantized, ties=ties)


def _with_stored_names(rule: Rule, source: Source, renamed: tuple[str, str] | None = None) -> Rule:
    """Return a rule with the tensor names that a source uses.

    As in transformers, a base model's names may lack the prefix "model.", and an LM head may have it. `renamed` is
    (name of a tensor that is not stored, name of the tensor it is tied to).
    """
    prefix = "model."

    def stored_name(name: str) -> str:
        if renamed and name == renamed[0]:
            return renamed[1]
        if name in source.tensors or not name:
            return name
        other = name.removeprefix(prefix) if name.startswith(prefix) else f"{prefix}{name}"
        return other if other in source.tensors else name

    names = [stored_name(tensor.name) for tensor in rule.sources]
    if names == [tensor.name for tensor in rule.sources]:
        return rule
    pairs = zip(rule.sources, names, strict=True)
    return replace(rule, sources=tuple(replace(tensor, name=name) for tensor, name in pairs))


def load_model(root: Path, dtype: str) -> SourceModel:
    """Load and read the model in `root`; raise CheckpointError as `read_model` does."""
    return read_model(load_source(root), dtype)
