# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a checkpoint: trial in a child process, encoding, and incremental decoding to whole characters.

Reads tokenizer.json with the `tokenizers` library, which transformers uses internally; importing it takes a hundredth
of the time. The library panics on some files, aborts the process on others, and allocates gigabytes for one large id,
so a tokenizer is tried in a child process before any trtspec process loads it. Successful trials are cached per user:

    CACHE/vetted/KEY    empty; KEY is the digest of the files' bytes and the versions
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.checkpoints.generation_config import find_end_ids, special_token
from trtspec.checkpoints.source import MAX_TOKENIZER_BYTES, Source, locate_model
from trtspec.checkpoints.tokenizer_classes import apply_transformers_class
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.files import UnreadableFile, describe_read_error, read_bounded
from trtspec.core.installation import installed_version
from trtspec.core.paths import cache_dir
from trtspec.core.sandbox import REFUSED, SandboxError, SandboxLimits, run_in_child, start_in_child


class RenderedText(str):
    """A chat rendered by a template, including special tokens, so encoding adds none.

    JSON does not preserve the type, so senders must transmit it separately.
    """

    __slots__ = ()


VETTED_FORMAT = "trtspec.vetted/1"
ATTEMPT = "trtspec.checkpoints.tokenizer:attempt"
TRIAL_LIMITS = SandboxLimits(memory_bytes=4 << 30, cpu_s=60, wall_s=180, output_bytes=4096)
MAX_VETTED_BYTES = 64 << 20
# The files that affect the loaded tokenizer, tokenizer.json first.
VETTED_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")


def vet(root: Path) -> None:
    """Raise CheckpointError if the tokenizer in `root` cannot be loaded and used within `TRIAL_LIMITS`.

    Does nothing if the tokenizers library is not installed, because loading needs it too.
    """
    if find_spec("tokenizers") is None:
        return
    ahead = _AHEAD.pop(root.absolute(), None)
    passed, finish = ahead or (_passed_file(root), None)
    if passed.is_file():
        return
    try:
        finish() if finish else run_in_child(ATTEMPT, str(root.absolute()), limits=TRIAL_LIMITS)
    except SandboxError as error:
        if error.cause == REFUSED:
            raise CheckpointError(error.message, where=str(root / VETTED_FILES[0]), hint=error.hint) from None
        message = f"not a usable tokenizer: the tokenizers library cannot load it ({error.message})"
        hint = "save it again with AutoTokenizer, or use the file from the model's repository"
        raise CheckpointError(message, where=str(root / VETTED_FILES[0]), hint=hint) from None
    with suppress(OSError):  # without the cache entry the trial is repeated
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


@contextmanager
def trial_ahead(model: str, revision: str | None) -> Iterator[None]:
    """Try a model's tokenizer in a child process while the block runs; `vet` only waits for the trial's end."""
    with ExitStack() as stack:
        with suppress(TrtspecError, OSError):  # the checks of the recipe raise it again
            root = locate_model(model, revision)
            if find_spec("tokenizers") and tokenizer_file(root):
                passed, finish = _passed_file(root), None
                if not passed.is_file():
                    finish = stack.enter_context(start_in_child(ATTEMPT, str(root.absolute()), limits=TRIAL_LIMITS))
                _AHEAD[root.absolute()] = passed, finish
                stack.callback(_AHEAD.pop, root.absolute(), None)
        yield


# By directory: the cache file of a tokenizer, and the function that waits for the end of its trial, if one runs.
_AHEAD: dict[Path, tuple[Path, Callable[[], Any] | None]] = {}


def _passed_file(root: Path) -> Path:
    return cache_dir() / "vetted" / _vetted_key(root)


def _vetted_key(root: Path) -> str:
    digest = hashlib.sha256(f"{VETTED_FORMAT} {installed_version('tokenizers')}".encode())
    for name in VETTED_FILES:
        path = root / name
        if path.is_file():
            try:
                content = read_bounded(path, MAX_VETTED_BYTES)
            except UnreadableFile as error:
                raise CheckpointError(describe_read_error(error), where=str(path)) from None
            except OSError as error:
                raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from None
            digest.update(f"\n{name} {len(content)}\n".encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()


MODEL = re.compile(rb'"model"\s*:\s*\{')
BROKEN = "�"  # U+FFFD, the decoders' replacement for incomplete characters
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # of tokenizers with byte fallback
# Byte-level BPE names bytes that are not printable by the characters from 256 on (openai/gpt-2:src/encoder.py).
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
OTHERS = (each for each in range(256) if each not in PRINTABLE)
BYTE_OF = {chr(each): each for each in PRINTABLE} | {chr(256 + place): each for place, each in enumerate(OTHERS)}
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


class _WholeTexts(dict[int, "str | None"]):
    """Texts of tokens by id, decoded when they are first needed; None if other tokens may change a token's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._is_by_token = tokenizer.decoders == {"ByteLevel"}

    def __missing__(self, token: int) -> str | None:
        is_whole = self._is_by_token and token not in self._tokenizer.fragments | self._tokenizer.silent
        self[token] = self._tokenizer.decode([token]) if is_whole else None
        return self[token]


class Tokenizer:
    """Tokenizer of a checkpoint directory, with the same ids and texts as in transformers."""

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
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def vocabulary(self) -> dict[str, int]:
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def as_json(self) -> str:
        """Return the tokenizer as tokenizer.json in the library's current format."""
        return str(self._backend.to_str())

    @property
    def merges(self) -> list[Any]:
        """Return the BPE merges in the library's current format; empty for a model without merges."""
        return list(json.loads(self._backend.to_str())["model"].get("merges", ()))

    @property
    def decoders(self) -> frozenset[str]:
        """Return the decoder types of tokenizer.json, e.g. "ByteLevel", including those in a sequence."""
        decoder = json.loads(self._backend.to_str())["decoder"] or {}
        return frozenset(each["type"] for each in (decoder, *decoder.get("decoders", ())) if each)

    @cached_property
    def added(self) -> frozenset[int]:
        """Return the ids of added tokens, which are not part of the model's vocabulary."""
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Return the end-of-text token ids; raise CheckpointError if the directory's end ids are invalid."""
        return find_end_ids(self.root, self._backend.token_to_id).ids

    def named(self, key: str) -> tuple[int, ...]:
        """Return the id of a special token such as "eos_token" as a tuple; empty if the token is not defined."""
        content = special_token(self.root, key)
        token = self._backend.token_to_id(content) if content is not None else None
        return () if token is None else (token,)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the token ids of `text`.

        By default, special tokens are added unless `text` is `RenderedText`. Raises TrtspecError for a text with lone
        surrogates, which UTF-8 cannot encode.
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
        """Return the special tokens that `encode` adds to every text that is not `RenderedText`."""
        return tuple(self.encode("", add_special_tokens=True))

    def as_plain(self, text: str) -> str | None:
        """Return a rendered chat without the special tokens that an engine adds to every text.

        Returns None if the template's first tokens differ from the tokens that the tokenizer adds. Special tokens
        inside the chat stay. Some tokenizers insert a space after the begin token, which the chat does not have.
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

    @cached_property
    def _text_of(self) -> Callable[[int], str | None]:
        return _WholeTexts(self).__getitem__

    def join_texts(self, ids: Sequence[int]) -> str | None:
        """Return the text of `ids` from texts of single tokens, which is faster; None if `decode` might differ.

        It is the same if the decoder maps each token to bytes, and each token has whole characters.
        """
        try:
            return "".join(map(self._text_of, ids))  # type: ignore[arg-type]
        except TypeError:  # a None among them
            return None

    def decode_with_specials(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def fragments(self) -> frozenset[int]:
        """Return the ids that do not decode to complete characters by themselves."""
        texts = self._backend.decode_batch([[token] for token in range(self.vocab_size)])
        return frozenset(token for token, text in enumerate(texts) if BROKEN in text)

    @cached_property
    def fragment_bytes(self) -> dict[int, bytes]:
        """Return the bytes of `fragments`, as far as the decoders name them: byte-level BPE and byte fallback."""
        names = {number: name for name, number in self.vocabulary.items() if number in self.fragments}
        if "ByteLevel" in self.decoders:
            named = {number: name for number, name in names.items() if BYTE_OF.keys() >= {*name}}
            return {number: bytes(BYTE_OF[each] for each in name) for number, name in named.items()}
        found = {number: BYTE_TOKEN.fullmatch(name) for number, name in names.items()}
        return {number: bytes([int(match[1], 16)]) for number, match in found.items() if match}

    @cached_property
    def silent(self) -> frozenset[int]:
        """Return the special token ids, which `decode` omits; bytes before and after them can form one character."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token for token, content in added.items() if content.special)

    @cached_property
    def _unsure(self) -> frozenset[int]:
        """Return the ids after which a character may be incomplete."""
        return self.fragments | self.silent

    def complete_len(self, ids: Sequence[int]) -> int:
        """Return the number of leading `ids` that decode to complete characters.

        The remaining tokens end in a partial character that the next token may complete.
        """
        if ids and ids[-1] not in self._unsure:
            return len(ids)
        visible = [position for position, token in enumerate(ids) if token not in self.silent]
        if not visible or ids[visible[-1]] not in self.fragments:
            return len(ids)
        incomplete = self._incomplete_len([ids[position] for position in visible[-2 * LONGEST_CHARACTER :]])
        return visible[-incomplete] if incomplete else len(ids)

    def _incomplete_len(self, window: list[int]) -> int:
        """Return the number of tokens at the end of `window` that may be the beginning of a character."""
        for count in range(LONGEST_CHARACTER):
            if not self.decode(window[: len(window) - count]).endswith(BROKEN):
                return count
        # invalid bytes: only the last of them can still begin a character
        begun = (count for count in range(1, LONGEST_CHARACTER) if self.decode(window[-count:]) == BROKEN)
        return max(begun, default=0)


@contextmanager
def _panics(what: str, where: Path) -> Iterator[None]:
    """Raise errors of the tokenizers library, including panics, as CheckpointError about `where`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TrtspecError):
        raise
    except BaseException as error:  # Exception for malformed files; PanicException is not an Exception
        words = str(error).strip() or type(error).__name__
        raise CheckpointError(f"{what}: {words.splitlines()[0][:300]}", where=str(where)) from None


class TokenizerMismatch(TrtspecError):
    """Raised if a draft's tokenizer has other ids than the target's."""


def check_tokenizers(target: Path, draft: Path) -> None:
    """Raise TokenizerMismatch if a draft's tokenizer gives ids another meaning than the target's.

    Equal files are equal tokenizers. Otherwise vocabularies, merges and the encodings of a text with many edge cases
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
    """Return the first token, with its id, that conflicts with the other vocabulary, or None."""
    found = []
    for own, foreign in ((one, other), (other, one)):
        known, taken = foreign.vocabulary, {*foreign.vocabulary.values()}
        for token, number in own.vocabulary.items():
            is_free = token not in known and number in own.added and number not in taken
            if known.get(token) != number and not is_free:
                found.append((token, number))
    return min(found, default=None)


TRIAL_TEXTS = ("Hello world", "  naïve café, 北京 🙂\n\tdef f(x): return 12345", "", "a" * 300)
# Ids are row numbers. Published vocabularies have few gaps, and each gap costs memory in every process.
HOLES, SPARE_IDS = 4, 1 << 16


def attempt(root: str, data: bytes) -> None:
    """Load a tokenizer and use it on sample texts, in `vet`'s child process; raise CheckpointError if unusable."""
    tokenizer = Tokenizer(Path(root), vetted=True)
    ids = tokenizer.vocabulary.values()
    largest, most = max(ids, default=0), HOLES * len(ids) + SPARE_IDS
    if largest >= most:
        raise CheckpointError(f"token id {largest:,} with only {len(ids):,} tokens; ids must be below {most:,}")
    for text in TRIAL_TEXTS:
        for special in (True, False):
            encoded = tokenizer.encode(text, special)
            _check_ids(encoded, largest)
            tokenizer.decode(encoded), tokenizer.decode_with_specials(encoded)
    every = sorted(ids)
    for start in range(0, len(every), 4096):
        tokenizer.decode_with_specials(every[start : start + 4096])
    _ = tokenizer.fragments, tokenizer.decoders, tokenizer.merges


def _check_ids(ids: list[int], largest: int) -> None:
    if too_large := [token for token in ids if token > largest]:
        raise CheckpointError(f"a text is encoded to the id {too_large[0]:,}, but the largest id is {largest:,}")
