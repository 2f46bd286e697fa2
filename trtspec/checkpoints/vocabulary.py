# SPDX-License-Identifier: Apache-2.0
"""Token ids in a tokenizer's files, parsed as JSON within limits, for checks without a tokenizer library.

A large tokenizer.json is parsed only if necessary: a search for numbers in the file, which takes a tenth of the time,
can prove that all ids are below a limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.checkpoints.generation_config import SPECIAL_TOKENS, TOKENIZER_CONFIG
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES, read_document
from trtspec.core.errors import CheckpointError
from trtspec.core.files import describe_read_error, read_bounded

TOKENIZER, ADDED_TOKENS = "tokenizer.json", "added_tokens.json"
MAX_VALUES = 4_000_000  # in tokenizer.json; the largest known, Gemma 3's, has 1.9 million
MAX_DIGITS = 9
NUMBERS = re.compile(rb'"\s*:\s*(\d{1,%d})\b' % MAX_DIGITS)
UNIGRAM = re.compile(rb'"vocab"\s*:\s*\[')
# Keys whose tokens transformers adds if the vocabulary lacks them, besides keys that end in "_token".
LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True)
class VocabularyFiles:
    """The files of a tokenizer directory that define tokens."""

    root: Path

    @cached_property
    def _raw(self) -> bytes:
        path = self.root / TOKENIZER
        try:
            return read_bounded(path, MAX_TOKENIZER_BYTES)
        except OSError as error:
            raise CheckpointError(describe_read_error(error), where=str(path)) from None

    @cached_property
    def _document(self) -> dict[str, Any]:
        values = sum(self._raw.count(mark) for mark in (b"[", b"{", b","))
        if values > MAX_VALUES:
            raise self._refuse(f"JSON of {values:,} values; at most {MAX_VALUES:,} are parsed")
        try:
            found = json.loads(self._raw.decode("utf-8"))
        except RecursionError:
            raise self._refuse("JSON nested too deeply") from None
        except ValueError as error:
            raise self._refuse(f"not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise self._refuse("not a JSON object")
        return found

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Return the ids of all tokens of tokenizer.json; raise CheckpointError if its vocabulary is invalid."""
        model = self._document.get("model")
        vocab = model.get("vocab") if isinstance(model, dict) else None
        pairs: list[tuple[Any, Any]]
        if isinstance(vocab, list):  # Unigram: [piece, score] by id
            pairs = [(each[0] if isinstance(each, list) and each else None, place) for place, each in enumerate(vocab)]
        elif isinstance(vocab, dict):
            pairs = list(vocab.items())
        else:
            raise self._refuse("its model lacks vocab")
        added = self._document.get("added_tokens") or []
        if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
            raise self._refuse("its added_tokens are not a list of objects")
        pairs += [(each.get("content"), each.get("id")) for each in added]
        found: dict[str, int] = {}
        for token, number in pairs:
            if not isinstance(token, str) or isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise self._refuse(f"the token {str(token)[:100]!r} has no valid id")
            found[token] = number
        return found

    def token_id(self, token: str) -> int | None:
        return self.ids.get(token) if self._may_have(token) else None

    def largest(self) -> tuple[str, int]:
        return max(self.ids.items(), key=lambda item: item[1], default=("", -1))

    def reaches(self, limit: int) -> bool:
        if not UNIGRAM.search(self._raw) and max(map(int, NUMBERS.findall(self._raw)), default=0) < limit:
            return False
        return self.largest()[1] >= limit

    def added_by_transformers(self) -> dict[str, int]:
        """Return the tokens that tokenizer.json lacks and transformers' AutoTokenizer adds, with their ids.

        New tokens get the ids after the vocabulary, regardless of the id in the file (tokenizers' AddedVocabulary).
        """
        missing = [token for token in dict.fromkeys(self._named()) if not self._may_have(token)]
        missing = [token for token in missing if token not in self.ids]
        if not missing:
            return {}
        model = self._document["model"]
        added = [each.get("id", 0) for each in self._document.get("added_tokens") or []]
        first = max(len(model["vocab"]), max(added, default=-1) + 1)
        return {token: first + place for place, token in enumerate(missing)}

    def _named(self) -> Iterator[str]:
        """Yield the tokens defined by the other files, in the order in which transformers adds them."""
        names = (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
        config, older, added = (read_document(self.root / name, 4 * MAX_CONFIG_BYTES) for name in names)
        decoder = config.get("added_tokens_decoder")
        if isinstance(decoder, dict):
            numbered = {int(key): each for key, each in decoder.items() if key.isdecimal() and len(key) <= MAX_DIGITS}
            yield from filter(None, (_content(each) for _, each in sorted(numbered.items())))
        else:
            config = config | {key: each for key, each in older.items() if each is not None}
            stated = {key: each for key, each in added.items() if isinstance(each, int)}
            yield from sorted(stated, key=lambda token: stated[token])
        for key, value in config.items():
            if key.endswith("_token"):
                yield from filter(None, (_content(value),))
            elif key in LISTS and isinstance(value, (list, dict)):
                listed = value if isinstance(value, list) else list(value.values())
                yield from filter(None, map(_content, listed))

    def _may_have(self, token: str) -> bool:
        """Return False if the bytes of tokenizer.json rule out the token, True if it may be present."""
        written = {json.dumps(token).encode(), json.dumps(token, ensure_ascii=False).encode("utf-8", "replace")}
        return any(each in self._raw for each in written) or "\\" in json.dumps(token)

    def _refuse(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=str(self.root / TOKENIZER))


def _content(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None
