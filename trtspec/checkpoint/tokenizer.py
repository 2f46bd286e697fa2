# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a checkpoint, and text that grows token by token without half characters.

Reads tokenizer.json with the `tokenizers` library, which is what transformers runs underneath and imports in a
hundredth of the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.checkpoint.generation_config import find_end_ids, special_token
from trtspec.checkpoint.source import MAX_TOKENIZER_BYTES, Source
from trtspec.errors import CheckpointError, TrtspecError

MODEL = re.compile(rb'"model"\s*:\s*\{')
BROKEN = "�"  # what decoders put in place of bytes that are no character yet
LONGEST_CHARACTER = 4  # bytes of one UTF-8 character, and so tokens that may share one

PROBE = (
    'The 2nd "quick" fox — naïve café, 北京, Привет 🙂\n\tdef f(x: int) -> str: return f"{x:>08.3f}"  # 12345 != 54321'
)


def tokenizer_file(root: Path) -> Path:
    """Return where tokenizer.json lies; raises CheckpointError where there is none, or one too large to read."""
    path = root / "tokenizer.json"
    if not path.is_file():
        hint = "save the tokenizer in the fast format with transformers"
        raise CheckpointError("no tokenizer.json", where=str(root), hint=hint)
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"larger than {MAX_TOKENIZER_BYTES:,} bytes", where=str(path))
    return path


def check_tokenizer(source: Source) -> None:
    """Raise CheckpointError where a source plainly has no tokenizer; needs no library, unlike `Tokenizer`.

    Looks without parsing: a vocabulary in Python's objects would take ten times the bytes of the file.
    """
    path = tokenizer_file(source.root)
    if path.name in source.absent:
        return
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not (raw.startswith(b"{") and raw.endswith(b"}")):
        raise CheckpointError("not a tokenizer: it does not begin and end as a JSON object", where=str(path))
    if not MODEL.search(raw):
        raise CheckpointError("not a tokenizer: it has no model", where=str(path))


class Tokenizer:
    """Encode and decode with the tokenizer of a checkpoint directory."""

    def __init__(self, root: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = tokenizer_file(root)
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise CheckpointError(f"not a tokenizer: {error}", where=str(path)) from None
        self._backend.no_padding()
        self._backend.no_truncation()
        self.root = root

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def vocabulary(self) -> dict[str, int]:
        """Return the ids of all tokens by their text."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    @property
    def merges(self) -> list[Any]:
        """Return the rules that join tokens, as the library would write them today; empty for a model without."""
        return list(json.loads(self._backend.to_str())["model"].get("merges", ()))

    @property
    def decoders(self) -> frozenset[str]:
        """Return the types of what turns tokens to text, as the library would write them today."""
        decoder = json.loads(self._backend.to_str())["decoder"] or {}
        return frozenset(each["type"] for each in (decoder, *decoder.get("decoders", ())) if each)

    @cached_property
    def added(self) -> frozenset[int]:
        """Return the ids of tokens that were added as they stand, beside those of the tokenizer's own alphabet."""
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Return the ids that end a text; raises CheckpointError where the directory's documents have no valid ones."""
        return find_end_ids(self.root, self._backend.token_to_id).ids

    def named(self, key: str) -> tuple[int, ...]:
        """Return the id of a token that the tokenizer's documents name, as "eos_token"; none where they do not."""
        content = special_token(self.root, key)
        token = self._backend.token_to_id(content) if content is not None else None
        return () if token is None else (token,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, with the begin token where the tokenizer asks for one.

        Raises TrtspecError for a text that UTF-8 cannot express: Python reads foreign bytes as such.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TrtspecError(f"the text is not UTF-8: character {error.start + 1} is half of a pair") from None
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def decode_whole(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` with special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def fragments(self) -> frozenset[int]:
        """Return the ids that are not whole characters by themselves."""
        texts = self._backend.decode_batch([[token] for token in range(self.vocab_size)])
        return frozenset(token for token, text in enumerate(texts) if BROKEN in text)

    @cached_property
    def silent(self) -> frozenset[int]:
        """Return the ids that `decode` leaves out: bytes before and after them may be one character."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token for token, content in added.items() if content.special)

    def complete_len(self, ids: Sequence[int]) -> int:
        """Return how many of `ids` can be shown: all but a tail that the next token may make a character of."""
        heard = [place for place, token in enumerate(ids) if token not in self.silent]
        if not heard or ids[heard[-1]] not in self.fragments:
            return len(ids)
        held = self._held([ids[place] for place in heard[-2 * LONGEST_CHARACTER :]])
        return heard[-held] if held else len(ids)

    def _held(self, window: list[int]) -> int:
        """Return how many of the last tokens of a text may be the beginning of a character."""
        for held in range(LONGEST_CHARACTER):
            if not self.decode(window[: len(window) - held]).endswith(BROKEN):
                return held
        # bytes that are no characters: only the last of them can still begin one
        begun = (held for held in range(1, LONGEST_CHARACTER) if self.decode(window[-held:]) == BROKEN)
        return max(begun, default=0)


class TokenizersDiffer(TrtspecError):
    """A draft's tokenizer does not give the target's ids."""


def check_tokenizers(target: Path, draft: Path) -> None:
    """Raise TokenizersDiffer where the ids of a draft's tokenizer mean other texts than the target's.

    Equal files are equal tokenizers; otherwise vocabularies, merges and the encodings of a text full of edges decide.
    One may have added tokens that the other lacks, such as a pad token, as long as their ids are free in the other.
    """
    if tokenizer_file(target).read_bytes() == tokenizer_file(draft).read_bytes():
        return
    ours, theirs = Tokenizer(target), Tokenizer(draft)
    if odd := _differing_token(ours, theirs):
        raise TokenizersDiffer(
            f"draft and target have different tokenizers: their vocabularies differ, as at {odd[0]!r} (id {odd[1]})",
            hint="draft tokens would mean other texts; choose a draft of the target's family",
        )
    if ours.merges != theirs.merges or ours.encode(PROBE) != theirs.encode(PROBE):
        raise TokenizersDiffer(
            "draft and target have different tokenizers: equal vocabularies, but they split a text differently",
            hint="choose a draft of the target's family",
        )


def _differing_token(one: Tokenizer, other: Tokenizer) -> tuple[str, int] | None:
    """Return a token and its id in one of two vocabularies that the other contradicts; None where they agree."""
    found = []
    for own, foreign in ((one, other), (other, one)):
        known, taken = foreign.vocabulary, {*foreign.vocabulary.values()}
        for token, number in own.vocabulary.items():
            is_free = token not in known and number in own.added and number not in taken
            if known.get(token) != number and not is_free:
                found.append((token, number))
    return min(found, default=None)
