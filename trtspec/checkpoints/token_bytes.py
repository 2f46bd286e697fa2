# SPDX-License-Identifier: Apache-2.0
"""The bytes of each token, for comparing the tokens of two tokenizers.

Two alphabets are supported: byte-level tokenizers, with a printable character for each byte (GPT-2's bytes_to_unicode),
and SentencePiece, with U+2581 for a space and <0x0A> for a byte that is not a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError

Meaning = tuple[bool, bytes]
"""(Whether the token is special, its bytes): the special token `</s>` differs from the text "</s>"."""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_ids(tokenizer: Tokenizer) -> dict[Meaning, int]:
    """Return token ids by meaning; of equal meanings the last id, as SentencePiece lists bytes before pieces.

    Raises CheckpointError for a tokenizer with another alphabet.
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
    """Return a token's bytes; none if a character does not represent a byte."""
    return bytes(BYTE_OF[each] for each in text) if BYTE_OF.keys() >= set(text) else b""


def _sentencepiece_bytes(text: str) -> bytes:
    one = _ONE_BYTE.fullmatch(text)
    return bytes.fromhex(one[1]) if one else text.replace("▁", " ").encode()
