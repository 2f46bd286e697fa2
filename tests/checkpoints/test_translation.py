# SPDX-License-Identifier: Apache-2.0
"""The bytes of tokens, the shared tokens of two tokenizers, and the spelling of one's tokens with the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._support.tiny import make_tokenizer
from trtspec.checkpoints.safetensors import lay_out
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.translation import MAX_SPELLING, TRANSLATION, VocabMapping, read_vocab_mapping, token_ids
from trtspec.core.errors import CheckpointError
from trtspec.core.paths import recipes_dir

QUICKSTART = recipes_dir() / "models" / "quickstart-target"


def save_pieces(root: Path, pieces: list[str], decoder: Any = None) -> Tokenizer:
    """Save a SentencePiece-style tokenizer: </s>, a token for each byte, then pieces."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    symbols = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [(piece[:-1], piece[-1]) for piece in pieces if len(piece) > 1]
    backend = Backend(models.BPE({text: at for at, text in enumerate(symbols)}, merges, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoder or decoders.Sequence(parts)
    backend.add_special_tokens(["</s>"])
    root.mkdir(parents=True)
    backend.save(str(root / "tokenizer.json"))
    (root / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return Tokenizer(root)


PIECES = ["▁", "t", "h", "e", "n", "▁t", "th", "the", "▁e"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with bytes, th, the, he, in, re, and <end>."""
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("bytes") / "t"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return save_pieces(tmp_path_factory.mktemp("pieces") / "t", PIECES)


def bytes_by_id(tokenizer: Tokenizer) -> dict[int, bytes]:
    return {token: meant for (_, meant), token in token_ids(tokenizer).items()}


@settings(deadline=None)
@given(text=st.text())
def test_bytes_of_byte_level_tokens_join_to_the_text(byte_level: Tokenizer, text: str) -> None:
    meant = bytes_by_id(byte_level)
    assert b"".join(meant[token] for token in byte_level.encode(text)) == text.encode()


@settings(deadline=None)
@given(text=st.text())
def test_bytes_of_sentencepiece_tokens_join_to_the_text(pieces: Tokenizer, text: str) -> None:
    meant = bytes_by_id(pieces)
    if "▁" not in text:
        assert b"".join(meant[token] for token in pieces.encode(text)) == text.encode()


def test_bytes_of_every_quickstart_token_match_its_decoded_text() -> None:
    tokenizer = Tokenizer(QUICKSTART)
    meant = bytes_by_id(tokenizer)
    assert len(meant) == tokenizer.vocab_size
    for token in set(meant) - tokenizer.fragments - tokenizer.silent:
        assert meant[token].decode() == tokenizer.decode([token])


def test_token_ids_prefer_a_piece_to_its_byte_token(pieces: Tokenizer) -> None:
    ids = token_ids(pieces)
    assert ids[False, b"t"] == 1 + 256 + PIECES.index("t")
    assert ids[False, b"\n"] == 1 + 0x0A
    assert ids[True, b"</s>"] == 0


def test_unsupported_decoder_is_rejected(tmp_path: Path) -> None:
    from tokenizers import decoders

    tokenizer = save_pieces(tmp_path / "t", PIECES, decoders.WordPiece())
    with pytest.raises(CheckpointError, match=r"bytes of its tokens are unknown \(unsupported decoder: WordPiece\)"):
        token_ids(tokenizer)


def test_shared_tokens_and_spellings_match_hand_computed_values(byte_level: Tokenizer, pieces: Tokenizer) -> None:
    made = VocabMapping.between(byte_level, pieces, byte_level.vocab_size + 2, pieces.vocab_size)
    theirs, ours = token_ids(pieces), byte_level.vocabulary
    shared = dict(zip(made.target_ids, made.draft_ids, strict=True))
    assert shared[ours["the"]] == theirs[False, b"the"]
    assert shared[ours["Ġ"]] == theirs[False, b" "]
    assert len(shared) == 256 + 2, "all bytes, th and the"
    assert ours["<end>"] not in shared, "their </s> is another text"
    assert made.spellings[ours["he"]] == [theirs[False, b"h"], theirs[False, b"e"]]
    assert made.spellings[ours["the"]] == [theirs[False, b"the"]]
    assert made.spellings[ours["<end>"]] == [0]
    assert made.spellings[-1] == [0], "a row of no token"
    back = VocabMapping.between(pieces, byte_level, pieces.vocab_size, 4)
    assert set(back.draft_ids) <= {0, 1, 2, 3}, "rows that the draft does not have are not drafted"


def test_spellings_use_the_longest_tokens_and_retain_the_last_when_too_long(tmp_path: Path) -> None:
    words = ["t", "h", "n", "th", "tht", "thth", "ththn"]
    target = save_pieces(tmp_path / "target", words + ["e" * n for n in range(1, 13)])
    draft = save_pieces(tmp_path / "draft", ["t", "h", "th", "tht", "e"])
    made = VocabMapping.between(target, draft, target.vocab_size, draft.vocab_size)
    ids = target.vocabulary
    spelled = {text: [draft.decode([token]) for token in made.spellings[ids[text]]] for text in ("thth", "ththn")}
    assert spelled == {"thth": ["tht", "h"], "ththn": ["tht", "h", "n"]}
    assert made.spellings[ids["e" * 12]] == [draft.vocabulary["e"]] * MAX_SPELLING


def test_vocab_mapping_round_trips_and_rejects_other_sizes(
    tmp_path: Path, byte_level: Tokenizer, pieces: Tokenizer
) -> None:
    assert read_vocab_mapping(tmp_path, 262, 266) is None
    made = VocabMapping.between(byte_level, pieces, byte_level.vocab_size, pieces.vocab_size)
    made.write(tmp_path)
    assert read_vocab_mapping(tmp_path, byte_level.vocab_size, pieces.vocab_size) == made
    for sizes in ((byte_level.vocab_size + 1, pieces.vocab_size), (byte_level.vocab_size, 200)):
        with pytest.raises(CheckpointError, match="does not match this target and draft"):
            read_vocab_mapping(tmp_path, *sizes)


@pytest.mark.parametrize(
    "wrong",
    [
        VocabMapping([0], [0, 1], [[0]]),
        VocabMapping([], [], [[0]]),
        VocabMapping([0], [0], [[]]),
        VocabMapping([-1], [0], [[0]]),
        VocabMapping([0], [0], [[7]]),
    ],
)
def test_inconsistent_vocab_mapping_is_rejected(tmp_path: Path, wrong: VocabMapping) -> None:
    wrong.write(tmp_path)
    with pytest.raises(CheckpointError, match="does not match this target and draft"):
        read_vocab_mapping(tmp_path, 1, 2)


def test_vocab_mapping_file_without_its_tensors_is_rejected(tmp_path: Path) -> None:
    (tmp_path / TRANSLATION).write_bytes(lay_out([("target_ids", "I64", (0,))]).header)
    with pytest.raises(CheckpointError, match="lacks target_ids with dtype I32"):
        read_vocab_mapping(tmp_path, 1, 1)
