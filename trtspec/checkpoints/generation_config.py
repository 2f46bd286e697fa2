# SPDX-License-Identifier: Apache-2.0
"""Generation settings of a checkpoint directory: the end-of-text token ids, and the author's default settings.

Reads the same files in the same order as `transformers.GenerationConfig.from_pretrained`: generation_config.json or, if
it does not exist, config.json, whose top-level keys override its text section. If generation_config.json cannot be
parsed, transformers falls back to config.json; this module raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.checkpoints.safe_json import repr_short
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_document, read_json
from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import CheckpointError

GENERATION_CONFIG, CONFIG, TOKENIZER_CONFIG = "generation_config.json", "config.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# Sections of config.json; transformers reads the first one present (GenerationConfig.from_model_config).
TEXT_SECTIONS = ("decoder", "generator", "text_config")
# Text model sections of other published configs; transformers does not read end ids from them.
OTHER_SECTIONS = ("llm_config", "language_config", "thinker_config")
MAX_END_IDS = 256
MAX_ID = (1 << 31) - 1

TokenId = Callable[[str], int | None]


@dataclass(frozen=True)
class EndIds:
    """End-of-text token ids, and the file and key they come from; `source` may be "" if `ids` is empty.

    `departs` is set if transformers' `generate` does not stop at these ids, because it does not read them from
    `source`.
    """

    ids: tuple[int, ...]
    source: str
    departs: bool = False

    def __str__(self) -> str:
        return (", ".join(map(str, self.ids)) or "none") + (f" ({self.source})" if self.source else "")


@dataclass(frozen=True)
class GenerationConfig:
    """Generation settings that are not null, and the file they come from."""

    values: Mapping[str, Any]
    path: Path


def read_generation_config(root: Path) -> GenerationConfig:
    """Read the generation settings of a checkpoint directory; raise CheckpointError if the file cannot be read."""
    path = root / GENERATION_CONFIG
    if path.exists() or path.is_symlink():
        try:
            return GenerationConfig(_set(read_json(path, MAX_CONFIG_BYTES)), path)
        except CheckpointError as error:
            hint = "repair the file, or remove it to use the end ids of config.json"
            raise CheckpointError(error.message, where=error.where, hint=hint) from None
    path = root / CONFIG
    document = _set(read_document(path))
    return GenerationConfig(_set(_text_section(document)) | document, path)


def find_end_ids(root: Path, token_id: TokenId) -> EndIds:
    """Return the end-of-text token ids of a checkpoint directory.

    `token_id` maps a token's text to its id, or to None. If generation_config.json exists but lacks end ids, the result
    is empty, as in transformers. Raises CheckpointError for a value that is not a token id, and for an id beyond the
    rows of the embedding.
    """
    found = read_generation_config(root)
    ids = _ids(found.values.get("eos_token_id"), found.path)
    _check_rows(ids, found.path, root)
    if ids or found.path.name == GENERATION_CONFIG:
        return EndIds(ids, found.path.name)
    document = read_document(found.path)
    for name in OTHER_SECTIONS:
        section = _section(document, name)
        section = _text_section(section) | _set(section)
        if ids := _ids(section.get("eos_token_id"), found.path):
            _check_rows(ids, found.path, root)
            return EndIds(ids, f"{CONFIG}: {name}", departs=True)
    if (token := special_token(root, "eos_token")) and (own := token_id(token)) is not None:
        return EndIds((own,), f"the tokenizer's eos_token {repr_short(token)}", departs=True)
    return EndIds((), "")


def special_token(root: Path, key: str) -> str | None:
    """Return the text of a special token such as "eos_token" from the tokenizer's files, or None.

    special_tokens_map.json takes precedence unless tokenizer_config.json has an `added_tokens_decoder`, which
    transformers treats as complete (PreTrainedTokenizerBase._from_pretrained).
    """
    document = read_document(root / TOKENIZER_CONFIG)
    if "added_tokens_decoder" not in document:
        document = document | _set(read_document(root / SPECIAL_TOKENS))
    found = document.get(key)
    content = found.get("content") if isinstance(found, dict) else found
    return content if isinstance(content, str) else None


def vocabulary_rows(root: Path) -> int:
    """Return the number of embedding rows according to config.json, or 0 if unknown."""
    document = read_document(root / CONFIG)
    others = (_section(document, name) for name in OTHER_SECTIONS)
    for each in (_text_section(document), document, *others):
        rows = each.get("vocab_size")
        if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0:
            return rows
    return 0


def _set(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _text_section(document: Mapping[str, Any]) -> dict[str, Any]:
    return next((found for name in TEXT_SECTIONS if (found := _section(document, name))), {})


def _ids(value: Any, path: Path) -> tuple[int, ...]:
    """Return the ids of an `eos_token_id`: an id, a list of ids, or null; raise CheckpointError if one is invalid."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if len(listed) > MAX_END_IDS:
        raise _refuse(path, f"it has {len(listed):,} ids; at most {MAX_END_IDS} are allowed")
    for each in listed:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= MAX_ID:
            raise _refuse(path, f"{quote_value(each)} is not a token id")
    return tuple(dict.fromkeys(listed))


def _check_rows(ids: tuple[int, ...], path: Path, root: Path) -> None:
    rows = vocabulary_rows(root)
    if rows and (odd := next((each for each in ids if each >= rows), None)) is not None:
        raise _refuse(path, f"the id {odd} is outside the vocabulary of {rows:,}")


def _refuse(path: Path, message: str) -> CheckpointError:
    hint = "write the id of the token that ends a text, or a list of such ids"
    return CheckpointError(f"eos_token_id: {message}", where=str(path), hint=hint)
