# SPDX-License-Identifier: Apache-2.0
"""What the tokens of a tokenizer mean: the bytes that each stands for, so that those of two tokenizers can be compared.

Two alphabets are known: that of byte-level tokenizers, in which a printable character stands for each byte (GPT-2's
bytes_to_unicode), and SentencePiece's, with U+2581 for a space and <0x0A> for a byte that is no character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError

Meaning = tuple[bool, bytes]
"""Whether a token is special, and its bytes: `</s>` that ends a text is no text of four characters."""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_ids(tokenizer: Tokenizer) -> dict[Meaning, int]:
    """Return the ids of tokens by what they mean; of equals the last, as SentencePiece has bytes before its pieces.

    Raises CheckpointError for a tokenizer of another alphabet.
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
        return _of_bytes
    if decoders & {"ByteFallback", "Metaspace"}:
        return _of_pieces
    message = f"its tokens are of a kind whose bytes are not known (decoder: {', '.join(sorted(decoders)) or 'none'})"
    hint = "a byte-level or a SentencePiece tokenizer is needed, or a draft with the target's own"
    raise CheckpointError(message, where=str(tokenizer.root), hint=hint)


def _of_bytes(text: str) -> bytes:
    """Return a token's bytes, none where a character stands for no byte."""
    return bytes(BYTE_OF[each] for each in text) if BYTE_OF.keys() >= set(text) else b""


def _of_pieces(text: str) -> bytes:
    one = _ONE_BYTE.fullmatch(text)
    return bytes.fromhex(one[1]) if one else text.replace("▁", " ").encode()
