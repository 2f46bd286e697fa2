# SPDX-License-Identifier: Apache-2.0
"""Check a single model: tokenizer, dtype, quantization and maximum text length."""

from __future__ import annotations

from pathlib import Path

from trtspec.checkpoints.memory_profile import read_memory_profile, read_text_config
from trtspec.checkpoints.model_config import RopeScaling, stretch
from trtspec.checkpoints.rope import read_rotary
from trtspec.checkpoints.source_model import SourceModel, parallel_mapping, requested_scheme
from trtspec.checkpoints.tied_embeddings import find_ties
from trtspec.checkpoints.tokenizer import check_tokenizer
from trtspec.core.errors import CheckpointError
from trtspec.engine.prompts.load import read_prompts
from trtspec.planning.check.collector import Findings
from trtspec.planning.check.selection import Selection
from trtspec.planning.check.sources import CheckedModel
from trtspec.planning.check.tokenizers import check_rows
from trtspec.recipe.schema import ModelSource

WIDER = {"F32": "float32", "BF16": "bfloat16"}  # dtypes with values outside the range of float16


def check_target(findings: Findings, chosen: Selection, target: CheckedModel) -> bool:
    """Check the target alone; return whether its tokenizer can be compared with a draft's."""
    source, before = target.source, findings.count_errors()
    if source is None:
        return False
    findings.attempt("target.model", "tokenizer", lambda: check_tokenizer(source))
    if findings.count_errors() == before:
        check_rows(findings, "target.model", source, vocabulary_rows(target))
    if target.model:
        check_format(findings, chosen, "target", chosen.recipe.target, target.model)
    elif not chosen.converts:
        found = find_ties(source, read_text_config(source)).diagnose(converts=False)
        findings.add(each.below("target") for each in found)
    _check_sizes(findings, chosen, target)
    return findings.count_errors() == before


def check_format(findings: Findings, chosen: Selection, path: str, asked: ModelSource, model: SourceModel) -> None:
    """Check a model's dtype, its parallelism and, if it is converted, its quantization."""
    stored = WIDER.get(model.source.main_dtype)
    if stored and asked.dtype == "auto" and model.config.dtype == "float16":
        message = f"its {stored} weights are converted to float16, whose largest value is 65,504"
        hint = "set dtype: bfloat16, which has the range of float32, or dtype: float16 to confirm"
        findings.warn(f"{path}.dtype", "dtype", message, hint)
    wanted = requested_scheme(asked)
    findings.add(each.below(path) for each in model.diagnose(wanted, parallel_mapping(asked), converts=chosen.converts))
    if not chosen.converts or not model.needs_calibration(wanted):
        return
    if prompts := asked.quantization.calibration.prompts:
        where = f"{path}.quantization.calibration.prompts"
        findings.attempt(where, "prompts", lambda: read_prompts(Path(prompts)))
    else:
        message = "no calibration prompts are set; activations are measured on prompts that come with trtspec"
        hint = "use prompts similar to your own texts: calibration: {prompts: FILE}"
        findings.warn(f"{path}.quantization", "default-prompts", message, hint)


def vocabulary_rows(checkpoint: CheckedModel) -> int:
    """Return the number of rows of a model's embedding, 0 if unknown."""
    if checkpoint.model:
        return checkpoint.model.config.vocab_size
    try:
        return read_memory_profile(checkpoint.source).vocab_size if checkpoint.source else 0
    except CheckpointError:
        return 0


def max_text_tokens(chosen: Selection, target: CheckedModel) -> int:
    """Return the maximum tokens of a text of the target, 0 if unknown."""
    if target.model:
        return chosen.positions(target.model.config)
    if chosen.converts or target.source is None:
        return 0
    try:
        positions = read_memory_profile(target.source).max_positions
    except CheckpointError:
        return 0
    scaling = _rotary_scaling(target, positions)
    is_stretched = chosen.backend and scaling and scaling.kind in chosen.backend.stretches
    return stretch(scaling, positions) if is_stretched else positions


def _rotary_scaling(target: CheckedModel, positions: int) -> RopeScaling | None:
    """Return the rotary scaling of a target, or None if no family describes it and its scaling is unknown."""
    if target.model:
        config = target.model.config
        return None if config.local_rotary_base else config.rope_scaling  # Gemma 3 lists scaled positions already
    try:
        return read_rotary(read_text_config(target.source), positions).scaling if target.source else None
    except CheckpointError:
        return None


def _check_sizes(findings: Findings, chosen: Selection, target: CheckedModel) -> None:
    engine, limit = chosen.recipe.engine, max_text_tokens(chosen, target)
    window = target.model.config.sliding_window if target.model else 0
    what = "tokens of sliding window" if limit == window else "positions"
    hint = f"at most {limit}"
    if limit and limit != window:
        hint += _stretching_hint(_rotary_scaling(target, limit), limit, engine.max_seq_len)
    for key, value in (("max_seq_len", engine.max_seq_len), ("max_input_len", engine.max_input_len)):
        if limit and value and key in engine.model_fields_set and value > limit:
            message = f"{key} {value} is more than the target's {limit} {what}"
            findings.error(f"engine.{key}", "out-of-range", message, hint)


def _stretching_hint(scaling: RopeScaling | None, limit: int, wanted: int) -> str:
    """Return a hint on config.json if a scaling supports longer texts than the engine accepts."""
    most = stretch(scaling, limit)
    if scaling is None or wanted > most or most <= limit:
        return ""
    if scaling.kind == "dynamic":
        return f"; dynamic scaling up to {most} depends on each text's length, which this backend does not support"
    original = scaling.original_max_position if scaling.kind == "yarn" else limit
    made = f"{scaling.kind} scaling of factor {scaling.factor:g} over {original} positions supports {most}"
    edit = f"max_position_embeddings: {most} in the target's config.json"
    if scaling.kind == "yarn":
        edit += f", and add original_max_position_embeddings: {original} next to the factor"
    return f"; its {made}, but this backend uses max_position_embeddings: set {edit}; no output changes"
