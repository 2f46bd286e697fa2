# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a checkpoint, and incremental decoding without incomplete characters.

Reads tokenizer.json with the `tokenizers` library, which transformers uses internally; importing it takes a hundredth
of the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.checkpoints.generation_config import find_end_ids, special_token
from trtspec.checkpoints.rendered_text import RenderedText
from trtspec.checkpoints.source import MAX_TOKENIZER_BYTES, Source
from trtspec.checkpoints.tokenizer_classes import apply_transformers_class
from trtspec.checkpoints.vetting import vet
from trtspec.core.errors import CheckpointError, TrtspecError

MODEL = re.compile(rb'"model"\s*:\s*\{')
BROKEN = "�"  # U+FFFD, the decoders' replacement for incomplete characters
LONGEST_CHARACTER = 4  # bytes of a UTF-8 character, and therefore tokens that may share one

PROBE = (
    'The 2nd "quick" fox — naïve café, 北京, Привет 🙂\n\tdef f(x: int) -> str: return f"{x:>08.3f}"  # 12345 != 54321'
)


def tokenizer_file(root: Path) -> Path:
    """Return the path of tokenizer.json; raise CheckpointError if it is missing or too large."""
    path = root / "tokenizer.json"
    if not path.is_file():
        hint = "save the tokenizer in the fast format with transformers"
        raise CheckpointError("no tokenizer.json", where=str(root), hint=hint)
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"larger than {MAX_TOKENIZER_BYTES:,} bytes", where=str(path))
    return path


def check_tokenizer(source: Source) -> None:
    """Raise CheckpointError if a source lacks a usable tokenizer.

    Without the tokenizers library the file is searched but not parsed: the vocabulary as Python objects would take ten
    times the memory of the file.
    """
    path = tokenizer_file(source.root)
    if path.name in source.absent:
        return
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not (raw.startswith(b"{") and raw.endswith(b"}")):
        raise CheckpointError("not a tokenizer: not a JSON object", where=str(path))
    if not MODEL.search(raw):
        raise CheckpointError("not a tokenizer: it lacks a model", where=str(path))
    vet(source.root)


class Tokenizer:
    """Encode and decode with the tokenizer of a checkpoint directory, as transformers loads it."""

    def __init__(self, root: Path, *, vetted: bool = False) -> None:
        """Load the tokenizer of a directory, after a trial in a child process unless `vetted`.

        Raises CheckpointError if it cannot be loaded.
        """
        from tokenizers import Tokenizer as Backend

        path = tokenizer_file(root)
        if not vetted:
            vet(root)
        with _panics("not a tokenizer", path):
            self._backend = apply_transformers_class(Backend.from_file(str(path)), root)
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
        """Return the merge rules in the library's current format; empty for a model without merges."""
        return list(json.loads(self._backend.to_str())["model"].get("merges", ()))

    @property
    def decoders(self) -> frozenset[str]:
        """Return the types of the decoders in the library's current format."""
        decoder = json.loads(self._backend.to_str())["decoder"] or {}
        return frozenset(each["type"] for each in (decoder, *decoder.get("decoders", ())) if each)

    @cached_property
    def added(self) -> frozenset[int]:
        """Return the ids of added tokens, which are not part of the model's vocabulary."""
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Return the ids that end a text; raise CheckpointError if the directory's end ids are invalid."""
        return find_end_ids(self.root, self._backend.token_to_id).ids

    def named(self, key: str) -> tuple[int, ...]:
        """Return the id of a special token such as "eos_token" as a tuple; empty if it is not defined."""
        content = special_token(self.root, key)
        token = self._backend.token_to_id(content) if content is not None else None
        return () if token is None else (token,)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the ids of `text`; special tokens are added unless it is `RenderedText`, or according to the flag.

        Raises TrtspecError for a text with lone surrogates, which UTF-8 cannot encode.
        """
        if add_special_tokens is None:
            add_special_tokens = not isinstance(text, RenderedText)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TrtspecError(f"the text is not UTF-8: character {error.start + 1} is a lone surrogate") from None
        with _panics("the tokenizer fails on this text", self.root):
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    @cached_property
    def adds(self) -> tuple[int, ...]:
        """Return the special tokens that are added to every text that is not `RenderedText`."""
        return tuple(self.encode("", add_special_tokens=True))

    def as_plain(self, text: str) -> str | None:
        """Return a rendered text without the special tokens that an engine will add to it.

        Its special tokens stay the same; some tokenizers insert a space after the begin token that the chat does not
        have. Returns None if the template's special tokens differ from those that the tokenizer adds.
        """
        plain, wanted = str.__str__(text), self.encode(text, add_special_tokens=False)
        if self.encode(plain, add_special_tokens=True) == wanted:
            return plain
        names = {number: name for name, number in self.vocabulary.items()}
        begin = "".join(names.get(token, "") for token in self.adds)
        if not begin or not plain.startswith(begin) or tuple(wanted[: len(self.adds)]) != self.adds:
            return None
        plain = plain.removeprefix(begin)
        again = self.encode(plain, add_special_tokens=True)
        return plain if tuple(again[: len(self.adds)]) == self.adds else None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def decode_with_specials(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` with special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def fragments(self) -> frozenset[int]:
        """Return the ids that do not decode to complete characters by themselves."""
        texts = self._backend.decode_batch([[token] for token in range(self.vocab_size)])
        return frozenset(token for token, text in enumerate(texts) if BROKEN in text)

    @cached_property
    def silent(self) -> frozenset[int]:
        """Return the ids that `decode` omits: bytes before and after them can form one character."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token for token, content in added.items() if content.special)

    def complete_len(self, ids: Sequence[int]) -> int:
        """Return how many of `ids` can be shown: all but a tail that the next token may complete to a character."""
        visible = [position for position, token in enumerate(ids) if token not in self.silent]
        if not visible or ids[visible[-1]] not in self.fragments:
            return len(ids)
        incomplete = self._incomplete_len([ids[position] for position in visible[-2 * LONGEST_CHARACTER :]])
        return visible[-incomplete] if incomplete else len(ids)

    def _incomplete_len(self, window: list[int]) -> int:
        """Return how many of the last tokens of a text may be the beginning of a character."""
        for count in range(LONGEST_CHARACTER):
            if not self.decode(window[: len(window) - count]).endswith(BROKEN):
                return count
        # invalid bytes: only the last of them can still begin a character
        begun = (count for count in range(1, LONGEST_CHARACTER) if self.decode(window[-count:]) == BROKEN)
        return max(begun, default=0)


@contextmanager
def _panics(what: str, where: Path) -> Iterator[None]:
    """Turn errors of the library, including panics, into a CheckpointError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TrtspecError):
        raise
    except BaseException as error:  # Exception for malformed files; PanicException is not an Exception
        words = str(error).strip() or type(error).__name__
        raise CheckpointError(f"{what}: {words.splitlines()[0][:300]}", where=str(where)) from None


class TokenizerMismatch(TrtspecError):
    """A draft's tokenizer has other ids than the target's."""


def check_tokenizers(target: Path, draft: Path) -> None:
    """Raise TokenizersDiffer if the ids of a draft's tokenizer mean other texts than the target's.

    Equal files are equal tokenizers; otherwise vocabularies, merges and the encodings of a text with many edge cases
    are compared. One tokenizer may have added tokens that the other lacks, such as a pad token, if their ids are unused
    in the other.
    """
    if tokenizer_file(target).read_bytes() == tokenizer_file(draft).read_bytes():
        return
    ours, theirs = Tokenizer(target), Tokenizer(draft)
    if odd := _differing_token(ours, theirs):
        raise TokenizerMismatch(
            f"draft and target have different tokenizers: their vocabularies differ, e.g. at {odd[0]!r} (id {odd[1]})",
            hint="draft tokens would mean other texts; choose a draft of the target's family",
        )
    if ours.merges != theirs.merges or ours.encode(PROBE) != theirs.encode(PROBE):
        raise TokenizerMismatch(
            "draft and target have different tokenizers: equal vocabularies, but different tokens for the same text",
            hint="choose a draft of the target's family",
        )


def _differing_token(one: Tokenizer, other: Tokenizer) -> tuple[str, int] | None:
    """Return a token and its id in one vocabulary that conflicts with the other, or None."""
    found = []
    for own, foreign in ((one, other), (other, one)):
        known, taken = foreign.vocabulary, {*foreign.vocabulary.values()}
        for token, number in own.vocabulary.items():
            is_free = token not in known and number in own.added and number not in taken
            if known.get(token) != number and not is_free:
                found.append((token, number))
    return min(found, default=None)
