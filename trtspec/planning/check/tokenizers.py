# SPDX-License-Identifier: Apache-2.0
"""Check a model's tokenizer against its weights: ids without a row, end ids, and the author's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trtspec.backends.base import backends
from trtspec.checkpoints.generation_config import (
    CONFIG,
    GENERATION_CONFIG,
    EndIds,
    find_end_ids,
    read_generation_config,
)
from trtspec.checkpoints.safe_json import repr_short
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.vocabulary import TOKENIZER, VocabularyFiles
from trtspec.core.errors import CheckpointError
from trtspec.engine.generation.model_defaults import (
    MODEL,
    SAMPLING,
    default_token_ids,
    effective_keys,
    read_defaults,
    unsupported_keys,
)
from trtspec.planning.check.collector import Findings

ROWS_HINT = (
    "save the model with as many rows as its tokenizer has ids: model.resize_token_embeddings(len(tokenizer)) in"
    " transformers; or remove the tokens that the model was not trained with"
)


def check_rows(findings: Findings, path: str, source: Source, rows: int) -> None:
    """Report a token whose id lacks an embedding row, and tokens that only the transformers tokenizer has."""
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
    """Return the target's end ids; report an invalid value, and a model without end ids."""
    if findings.attempt(path, "generation-config", lambda: read_generation_config(source.root)) is None:
        return None
    files = VocabularyFiles(source.root)
    token_id = (
        files.token_id if TOKENIZER not in source.absent and (source.root / TOKENIZER).is_file() else _no_token_id
    )
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


def check_defaults(findings: Findings, path: str, source: Source, rows: int) -> None:
    """List settings of generation_config.json that are not applied to requests, and report unsupported values."""
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
        if rows and (odd := max(default_token_ids(defaults), default=0)) >= rows:
            message = f"{config.path}: the id {odd} is outside of the vocabulary of {rows:,}"
            findings.error("serving.defaults", "generation-config", message, "remove it from the file")
    else:
        left = effective_keys(config)
    if not left:
        return
    names = ", ".join(f"{key} {repr_short(str(value))[1:-1]}" for key, value in left.items())
    message = f"{config.path}: {names}: not applied to requests, unlike in transformers' generate"
    hint = "no engine here supports it as a default" if takes_them else _how_to_apply(left)
    findings.warn("serving.defaults" if takes_them else path, "generation-config", message, hint)


def _how_to_apply(left: Mapping[str, object]) -> str:
    """Return how to apply settings: with a recipe key or a request field."""
    fields = {"min_new_tokens": "min_tokens"} | {key: key for key in (*SAMPLING, "repetition_penalty")}
    own = [fields[key] for key in left if key in fields]
    taken = [name for name, each in backends().items() if MODEL in each.defaults]
    hint = f"serving.defaults: model makes them the defaults (engine.backend: {' or '.join(taken)})"
    return f"{hint}; a request may set {', '.join(own)}" if own else hint


def _warn_of_none(findings: Findings, path: str, source: Source, found: EndIds) -> None:
    message = f"{source.root}: the model lacks an end id, so every response runs to its max_tokens"
    hint = f"write eos_token_id to {GENERATION_CONFIG}"
    if found.source == GENERATION_CONFIG:
        message += f": {GENERATION_CONFIG} lacks it, and transformers ignores other files if it exists"
        others = _config_ids(source)
        message += f" ({CONFIG} has {others})" if others else ""
        hint += ", or remove the file" if others else ""
    findings.warn(path, "end-ids", message, hint)


def _config_ids(source: Source) -> str:
    """Return the eos_token_id of config.json as text, "" if not set."""
    value = source.config.get("eos_token_id")
    return "" if value is None else repr_short(str(value))[1:-1]


def _no_token_id(token: str) -> int | None:
    """Return None: the tokenizer is not available."""
    return None
