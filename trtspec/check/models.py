# SPDX-License-Identifier: Apache-2.0
"""A model alone: its tokenizer, what it computes in, how it is quantized, and how long its texts may be."""

from __future__ import annotations

from pathlib import Path

from trtspec.check.chosen import Chosen
from trtspec.check.findings import Findings
from trtspec.check.sources import Checkpoint
from trtspec.check.tokenizers import check_rows
from trtspec.checkpoint.tokenizer import check_tokenizer
from trtspec.errors import CheckpointError
from trtspec.models.outline import read_outline
from trtspec.models.source_model import SourceModel, mapping_of, scheme_wanted
from trtspec.prompts.load import read_prompts
from trtspec.recipe.schema import ModelSource

WIDER = {"F32": "float32", "BF16": "bfloat16"}  # what has values that float16 has not


def check_target(findings: Findings, chosen: Chosen, target: Checkpoint) -> bool:
    """Check the target alone; return whether its tokenizer may be compared with a draft's."""
    source, before = target.source, findings.count_errors()
    if source is None:
        return False
    findings.attempt("target.model", "tokenizer", lambda: check_tokenizer(source))
    if findings.count_errors() == before:
        check_rows(findings, "target.model", source, vocabulary_of(target))
    if target.model:
        check_format(findings, chosen, "target", chosen.recipe.target, target.model)
    _check_sizes(findings, chosen, target)
    return findings.count_errors() == before


def check_format(findings: Findings, chosen: Chosen, path: str, asked: ModelSource, model: SourceModel) -> None:
    """Check what a model computes in, how it is divided, and where it is converted how it is quantized."""
    stored = WIDER.get(model.source.main_dtype)
    if stored and asked.dtype == "auto" and model.config.dtype == "float16":
        message = f"its {stored} weights become float16, whose largest value is 65,504"
        hint = "set dtype: bfloat16, which has the range of float32, or dtype: float16 if that is meant"
        findings.warn(f"{path}.dtype", "dtype", message, hint)
    wanted = scheme_wanted(asked)
    findings.add(each.below(path) for each in model.diagnose(wanted, mapping_of(asked), converts=chosen.converts))
    if not chosen.converts or not model.needs_calibration(wanted):
        return
    if prompts := asked.quantization.calibration.prompts:
        where = f"{path}.quantization.calibration.prompts"
        findings.attempt(where, "prompts", lambda: read_prompts(Path(prompts)))
    else:
        message = "no calibration prompts are named; activations are measured on the ones that trtspec brings"
        hint = "name some of your own kind of text: calibration: {prompts: FILE}"
        findings.warn(f"{path}.quantization", "default-prompts", message, hint)


def vocabulary_of(checkpoint: Checkpoint) -> int:
    """Return the number of rows of a model's embedding, 0 where that is not known."""
    if checkpoint.model:
        return checkpoint.model.config.vocab_size
    try:
        return read_outline(checkpoint.source).vocab_size if checkpoint.source else 0
    except CheckpointError:
        return 0


def longest(chosen: Chosen, target: Checkpoint) -> int:
    """Return how many tokens a text of the target may have, 0 where that is not known."""
    if target.model:
        return chosen.positions(target.model.config)
    if chosen.converts or target.source is None:
        return 0
    try:
        return read_outline(target.source).max_positions
    except CheckpointError:
        return 0


def _check_sizes(findings: Findings, chosen: Chosen, target: Checkpoint) -> None:
    engine, limit = chosen.recipe.engine, longest(chosen, target)
    is_window = target.model is not None and limit != target.model.config.max_positions
    what = "tokens of sliding window" if is_window else "positions"
    for key, value in (("max_seq_len", engine.max_seq_len), ("max_input_len", engine.max_input_len)):
        if limit and value and key in engine.model_fields_set and value > limit:
            message = f"{key} {value} is more than the target's {limit} {what}"
            findings.error(f"engine.{key}", "out-of-range", message, f"at most {limit}")
