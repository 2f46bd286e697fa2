# SPDX-License-Identifier: Apache-2.0
"""Checks of a single model: tokenizer against weights, end ids, dtype, quantization and maximum text length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trtspec.backends.base import backends
from trtspec.checkpoints.generation_config import (
    CONFIG,
    GENERATION_CONFIG,
    EndIds,
    find_end_ids,
    read_generation_config,
)
from trtspec.checkpoints.memory_profile import read_memory_profile, read_text_config
from trtspec.checkpoints.model_config import RopeScaling, stretch
from trtspec.checkpoints.rope import read_rotary
from trtspec.checkpoints.safe_json import repr_short
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel, parallel_mapping, requested_scheme
from trtspec.checkpoints.tied_embeddings import find_ties
from trtspec.checkpoints.tokenizer import check_tokenizer
from trtspec.checkpoints.vocabulary import TOKENIZER, VocabularyFiles
from trtspec.core.errors import CheckpointError
from trtspec.engine.generation.model_defaults import (
    APPLIED,
    MODEL,
    SAMPLING,
    effective_keys,
    read_defaults,
    unsupported_keys,
)
from trtspec.engine.prompts.load import read_prompts
from trtspec.planning.check.inputs import CheckedModel, Findings, Selection
from trtspec.recipe.schema import ModelSource

ROWS_HINT = (
    "save the model with as many rows as its tokenizer has ids: model.resize_token_embeddings(len(tokenizer)) in"
    " transformers; or remove the tokens that the model was not trained with"
)


def check_rows(findings: Findings, path: str, source: Source, rows: int) -> None:
    """Report a token whose id is beyond the embedding's `rows`, and tokens that only the transformers tokenizer has."""
    if TOKENIZER in source.absent or not (source.root / TOKENIZER).is_file() or not rows:
        return
    findings.attempt(path, "tokenizer", partial(_check_rows, findings, path, VocabularyFiles(source.root), rows))


def _check_rows(findings: Findings, path: str, files: VocabularyFiles, rows: int) -> None:
    where, added = files.root / TOKENIZER, files.added_by_transformers()
    if files.reaches(rows):
        token, number = files.largest()
        problem = f"{where}: the token {repr_short(token)} has the id {number}, but the embedding has {rows:,} rows"
        findings.error(path, "tokenizer", f"{problem}: texts that contain it cannot be served", ROWS_HINT)
    beyond = {token: number for token, number in added.items() if number >= rows}
    for token, number in list(beyond.items())[:1]:
        more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        problem = f"{files.root}: transformers adds the token {repr_short(token)} to the tokenizer as id {number}{more}"
        findings.error(path, "tokenizer", f"{problem}, but the embedding has {rows:,} rows", ROWS_HINT)
    if added and not beyond:
        token, number = next(iter(added.items()))
        more = f" and {len(added) - 1} more" if len(added) > 1 else ""
        lacks = f"tokenizer.json lacks the token {repr_short(token)}{more}"
        problem = f"{files.root}: {lacks}, which transformers adds as id {number}"
        hint = "save the tokenizer again with transformers, which adds it to tokenizer.json"
        findings.warn(
            path, "tokenizer", f"{problem}: programs that read only tokenizer.json tokenize it differently", hint
        )


def check_end_ids(findings: Findings, path: str, source: Source) -> EndIds | None:
    """Return the ids of the target's end-of-text tokens; report an invalid value, and a model without end ids."""
    if findings.attempt(path, "generation-config", lambda: read_generation_config(source.root)) is None:
        return None
    files = VocabularyFiles(source.root)
    has_tokenizer = TOKENIZER not in source.absent and (source.root / TOKENIZER).is_file()
    token_id = files.token_id if has_tokenizer else lambda token: None
    found = findings.attempt(path, "end-ids", lambda: find_end_ids(source.root, token_id))
    if found is None:
        return None
    if not found.ids:
        _warn_of_none(findings, path, source, found)
    elif found.departs:
        message = f"{source.root}: texts end at {found}; transformers' generate finds no end id and does not stop there"
        hint = f"write eos_token_id to {GENERATION_CONFIG} so that both stop at the same token"
        findings.warn(path, "end-ids", message, hint)
    return found


def check_defaults(findings: Findings, path: str, source: Source, rows: int, *, edits_logits: bool) -> None:
    """Warn about settings of generation_config.json that are not applied to requests; report unsupported values.

    Without `edits_logits` the backend applies only the sampling options.
    """
    takes_them = findings.loaded.recipe.serving.defaults == MODEL
    try:
        config = read_generation_config(source.root)
    except CheckpointError:
        return  # reported with the end ids
    if takes_them:
        read = findings.attempt(
            "serving.defaults", "generation-config", lambda: (read_defaults(config), unsupported_keys(config))
        )
        if read is None:
            return
        defaults, left = read
        if not edits_logits:
            left = {key: value for key, value in effective_keys(config).items() if key in APPLIED} | left
        if rows and (odd := max(defaults.edits.token_ids, default=0)) >= rows:
            message = f"{config.path}: the id {odd} is outside of the vocabulary of {rows:,}"
            findings.error("serving.defaults", "generation-config", message, "remove it from the file")
    else:
        left = effective_keys(config)
    if not left:
        return
    names = ", ".join(f"{key} {repr_short(str(value))[1:-1]}" for key, value in left.items())
    message = f"{config.path}: {names}: not applied to requests, unlike in transformers' generate"
    hint = _how_to_apply(left)
    if takes_them:
        hint = "no engine here supports it as a default" if edits_logits else "this backend supports sampling only"
    findings.warn("serving.defaults" if takes_them else path, "generation-config", message, hint)


def _how_to_apply(left: Mapping[str, object]) -> str:
    """Return a hint on applying settings of generation_config.json by a recipe key or by request fields."""
    fields = {"min_new_tokens": "min_tokens"} | {key: key for key in (*SAMPLING, "repetition_penalty")}
    own = [fields[key] for key in left if key in fields]
    edits = any(key in APPLIED for key in left)
    taken = [name for name, each in backends().items() if MODEL in each.defaults and (each.edits_logits or not edits)]
    hint = f"serving.defaults: model makes them the defaults (engine.backend: {' or '.join(taken)})"
    return f"{hint}; a request may set {', '.join(own)}" if own else hint


def _warn_of_none(findings: Findings, path: str, source: Source, found: EndIds) -> None:
    message = f"{source.root}: the model lacks an end id, so every response runs to its max_tokens"
    hint = f"write eos_token_id to {GENERATION_CONFIG}"
    if found.source == GENERATION_CONFIG:
        message += f": {GENERATION_CONFIG} lacks it, and transformers ignores other files if it exists"
        ids = source.config.get("eos_token_id")
        others = "" if ids is None else repr_short(str(ids))[1:-1]
        message += f" ({CONFIG} has {others})" if others else ""
        hint += ", or remove the file" if others else ""
    findings.warn(path, "end-ids", message, hint)


WIDER = {"F32": "float32", "BF16": "bfloat16"}  # dtypes with values outside the range of float16


def check_target(findings: Findings, chosen: Selection, target: CheckedModel) -> bool:
    """Check the target on its own; return True if no error was found, so that a draft's tokenizer can be compared."""
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
    """Check a model's dtype and parallelism and, if it is converted, its quantization."""
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
    """Return the number of rows of a model's embedding; 0 if unknown."""
    if checkpoint.model:
        return checkpoint.model.config.vocab_size
    try:
        return read_memory_profile(checkpoint.source).vocab_size if checkpoint.source else 0
    except CheckpointError:
        return 0


def max_text_tokens(chosen: Selection, target: CheckedModel) -> int:
    """Return the maximum number of tokens of a text that the target supports on the backend; 0 if unknown."""
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
    """Return the target's RoPE scaling, or None if the target is not scaled or its scaling is unknown."""
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
    """Return a hint on editing config.json if the RoPE scaling supports longer texts than the engine accepts."""
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
