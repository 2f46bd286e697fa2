# SPDX-License-Identifier: Apache-2.0
"""Mapping between the vocabularies of a target and a draft by token bytes, stored in the draft's checkpoint.

Tokens of both vocabularies are drafted: token-level intersection (Timor et al. 2025, arXiv:2502.05202, algorithm 4).
The draft reads a text token by token: a target token that the draft lacks is spelled with the longest matching draft
tokens.

Two alphabets are supported: byte-level tokenizers, with a printable character for each byte (GPT-2's bytes_to_unicode),
and SentencePiece, with U+2581 for a space and <0x0A> for a byte that is not a character.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

from trtspec.checkpoints.safetensors import lay_out, read_header
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError
from trtspec.core.files import read_bounded

Meaning = tuple[bool, bytes]
"""(is special, bytes) of a token: the special token `</s>` differs from the text "</s>"."""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_ids(tokenizer: Tokenizer) -> dict[Meaning, int]:
    """Return token ids by meaning, (is special, bytes); for equal meanings the last id.

    SentencePiece lists single bytes before pieces, so the last id is the piece. Raises CheckpointError for a tokenizer
    with another alphabet.
    """
    decode, added = _alphabet(tokenizer), tokenizer.added
    found: dict[Meaning, int] = {}
    for text, token in sorted(tokenizer.vocabulary.items(), key=lambda item: item[1]):
        meant = text.encode() if token in added else decode(text)
        if meant:
            found[token in tokenizer.silent, meant] = token
    return found


def _alphabet(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    decoders = tokenizer.decoders
    if "ByteLevel" in decoders:
        return _byte_level_bytes
    if decoders & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    message = f"the bytes of its tokens are unknown (unsupported decoder: {', '.join(sorted(decoders)) or 'none'})"
    hint = "use a byte-level or SentencePiece tokenizer, or a draft with the target's tokenizer"
    raise CheckpointError(message, where=str(tokenizer.root), hint=hint)


def _byte_level_bytes(text: str) -> bytes:
    """Return a token's bytes; empty if a character does not represent a byte."""
    return bytes(BYTE_OF[each] for each in text) if BYTE_OF.keys() >= set(text) else b""


def _sentencepiece_bytes(text: str) -> bytes:
    one = _ONE_BYTE.fullmatch(text)
    return bytes.fromhex(one[1]) if one else text.replace("▁", " ").encode()


TRANSLATION = "translation.safetensors"  # in the draft's checkpoint
PARTS = ("target_ids", "draft_ids", "spelling_lens", "spellings")
MAX_BYTES = 64 << 20
MAX_LENGTH_RATIO = 2
"""Largest ratio of draft tokens to target tokens of a text; beyond it drafting stops."""
MAX_SPELLING = 8
"""Most draft tokens per target token; only the last ones of a longer spelling are used."""


@dataclass(frozen=True)
class VocabMapping:
    """Shared tokens, as ids of the target and of the draft, and the draft's spelling of each target token."""

    target_ids: list[int]
    draft_ids: list[int]
    spellings: list[list[int]]

    @classmethod
    def between(cls, target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> VocabMapping:
        """Map two tokenizers, for models with `target_size` and `draft_size` vocabulary entries.

        Raises CheckpointError if the bytes of the tokens are unknown.
        """
        ours, theirs = (_within(token_ids(each), size) for each, size in ((target, target_size), (draft, draft_size)))
        shared = sorted((token, theirs[meant]) for meant, token in ours.items() if meant in theirs)
        words = {meant: token for (special, meant), token in theirs.items() if not special}
        named = (*draft.named("bos_token"), *draft.named("eos_token"), 0)
        spellings = [[named[0]]] * target_size  # tokens without text are read as a text boundary
        for (special, meant), token in ours.items():
            spellings[token] = (not special and _spell(meant, words)) or spellings[token]
        for token, drafted in shared:
            spellings[token] = [drafted]
        return cls([token for token, _ in shared], [drafted for _, drafted in shared], spellings)

    def write(self, out: Path) -> None:
        """Write the mapping as a safetensors file into the draft's checkpoint directory `out`."""
        lens, spelled = map(len, self.spellings), chain.from_iterable(self.spellings)
        parts = [_little(array("i", part)) for part in (self.target_ids, self.draft_ids, lens, spelled)]
        layout = lay_out((name, "I32", (len(part),)) for name, part in zip(PARTS, parts, strict=True))
        (out / TRANSLATION).write_bytes(layout.header + b"".join(part.tobytes() for part in parts))


def read_vocab_mapping(root: Path, target_size: int, draft_size: int) -> VocabMapping | None:
    """Load the mapping in a draft's checkpoint; return None if the draft uses the target's vocabulary.

    Raises CheckpointError if the mapping does not fit models with these numbers of vocabulary entries.
    """
    path = root / TRANSLATION
    if not path.exists():
        return None
    target_ids, draft_ids, lens, spelled = _read_parts(path)
    ends = list(accumulate(lens))
    fits = len(target_ids) == len(draft_ids) > 0 and len(lens) == target_size and ends[-1] == len(spelled)
    fits = fits and min(lens) > 0 and _are_ids(target_ids, target_size) and _are_ids(draft_ids + spelled, draft_size)
    if not fits:
        raise CheckpointError("does not match this target and draft", where=str(path), hint="build the artifact again")
    spellings = [spelled[end - length : end] for end, length in zip(ends, lens, strict=True)]
    return VocabMapping(target_ids, draft_ids, spellings)


def _read_parts(path: Path) -> list[list[int]]:
    tensors, raw = read_header(path), read_bounded(path, MAX_BYTES)
    parts = []
    for name in PARTS:
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != "I32":
            raise CheckpointError(f"lacks {name} with dtype I32", where=str(path), hint="build the artifact again")
        parts.append(_little(array("i", raw[tensor.offset : tensor.offset + tensor.nbytes])).tolist())
    return parts


def _little(values: array[int]) -> array[int]:
    """Convert 32-bit integers between native and little-endian byte order, in place."""
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _within(ids: Mapping[Meaning, int], size: int) -> dict[Meaning, int]:
    return {meant: token for meant, token in ids.items() if token < size}


def _spell(text: bytes, words: Mapping[bytes, int]) -> list[int]:
    """Return the last MAX_SPELLING ids that spell `text` by longest match; bytes that begin no match are skipped."""
    found, longest, start = [], max(map(len, words), default=0), 0
    while start < len(text):
        ends = range(min(start + longest, len(text)), start, -1)
        end = next((end for end in ends if text[start:end] in words), start)
        found += [words[text[start:end]]] if end > start else []
        start = max(end, start + 1)
    return found[-MAX_SPELLING:]


def _are_ids(values: list[int], size: int) -> bool:
    return min(values) >= 0 and max(values) < size
