# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests._support.tiny import MERGES, WORDS, make_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.paths import recipes_dir

TEXTS = ["", "the rest", "naïve — 北京 🙂🙂", "\n\t{}", "�", "th" * 40]


@cache
def tiny() -> Tokenizer:
    return Tokenizer(make_tokenizer(Path(mkdtemp())))


def in_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the pieces of text of ids that arrive one at a time, as a running request streams them."""
    shown, pieces = 0, []
    for end in range(1, len(ids) + 1):
        until = shown + tokenizer.complete_len(ids[shown:end]) if end < len(ids) else end
        if until > shown:
            pieces.append(tokenizer.decode(ids[shown:until]))
            shown = until
    return pieces


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_match_transformers(text: str) -> None:
    from transformers import AutoTokenizer

    root = recipes_dir() / "models" / "quickstart-target"
    ours, theirs = Tokenizer(root), AutoTokenizer.from_pretrained(root)
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == text


def test_merges_and_vocabulary_are_read_from_the_file() -> None:
    assert tiny().vocab_size == 1 + 256 + len(WORDS)
    assert tiny().vocabulary["<end>"] == 0
    assert tiny().merges == [list(pair) for pair in MERGES]
    assert len(tiny().encode("the")) == 1


@given(st.lists(st.integers(0, 255 + len(WORDS)), max_size=12))
@example(tiny().encode("é"))
def test_joined_texts_equal_the_decoder(ids: list[int]) -> None:
    joined = tiny().join_texts(ids)
    whole = tiny().fragments.isdisjoint(ids) and tiny().silent.isdisjoint(ids)
    assert joined == (tiny().decode(ids) if whole else None)


def test_texts_of_other_decoders_are_not_joined(tmp_path: Path) -> None:
    root = make_tokenizer(tmp_path)
    document = json.loads((root / "tokenizer.json").read_text())
    document["decoder"] = {"type": "Sequence", "decoders": [document["decoder"], {"type": "Fuse"}]}
    (root / "tokenizer.json").write_text(json.dumps(document))
    other = Tokenizer(root)
    assert other.join_texts(other.encode("the rest")) is None


@given(st.text())
def test_streamed_pieces_join_to_the_text(text: str) -> None:
    pieces = in_pieces(tiny(), tiny().encode(text))
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces if "�" not in text)


BYTES_OF_FEW = [tiny().encode(character)[place] for character in "a京🙂" for place in range(len(character.encode()))]
ANY_IDS = st.integers(0, tiny().vocab_size - 1)


@given(st.lists(st.sampled_from(BYTES_OF_FEW)) | st.lists(ANY_IDS))
@example([BYTES_OF_FEW[place] for place in (1, 2, 1, 2, 3)])
@example([127, 0, 95])  # a special token between the two bytes of a character
def test_streamed_pieces_of_arbitrary_ids_join_to_the_decoded_text(ids: list[int]) -> None:
    """Ids that a model may generate but no text encodes to: lone bytes, incomplete characters, special tokens."""
    assert "".join(in_pieces(tiny(), ids)) == tiny().decode(ids)


@given(st.lists(ANY_IDS, min_size=1))
def test_streaming_withholds_at_most_three_tokens(ids: list[int]) -> None:
    held = ids[tiny().complete_len(ids) :]
    assert len([token for token in held if token not in tiny().silent]) <= 3
    assert tiny().complete_len([0] * 9) == 9


END_CASES = [
    ({}, {}, ()),
    ({"generation_config.json": {"eos_token_id": 3}}, {"eos_token": "<end>"}, (3,)),
    ({"generation_config.json": {"eos_token_id": [3, 4]}}, {}, (3, 4)),
    ({"generation_config.json": {"eos_token_id": None}}, {"eos_token": "<end>"}, ()),
    ({"config.json": {"eos_token_id": 7}}, {"eos_token": "<end>"}, (7,)),
    ({}, {"eos_token": {"content": "<end>"}}, (0,)),
    ({}, {"eos_token": "<nosuch>"}, ()),
]


@pytest.mark.parametrize(("files", "config", "expected"), END_CASES)
def test_end_ids_are_read_from_the_tokenizer_files(
    files: dict[str, object], config: dict[str, object], expected: tuple[int, ...], tmp_path: Path
) -> None:
    make_tokenizer(tmp_path)
    for name, content in {**files, "tokenizer_config.json": config}.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer(tmp_path).end_ids == expected


def test_tokenizer_without_a_config_has_no_end_ids(tmp_path: Path) -> None:
    (make_tokenizer(tmp_path) / "tokenizer_config.json").unlink()
    assert Tokenizer(tmp_path).end_ids == ()


def test_missing_or_invalid_tokenizer_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json") as refused:
        Tokenizer(tmp_path)
    assert refused.value.hint == "save the tokenizer in the fast format with transformers"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer: "):
        Tokenizer(tmp_path)


def test_truncation_setting_of_the_file_is_ignored(tmp_path: Path) -> None:
    path = make_tokenizer(tmp_path) / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": cut}))
    assert len(Tokenizer(tmp_path).encode("abcdef")) == 6


@pytest.mark.parametrize("text", ["\ud800", "ab\udcff"])
def test_text_with_a_lone_surrogate_is_rejected(text: str) -> None:
    with pytest.raises(TrtspecError, match=f"^the text is not UTF-8: character {len(text)} is a lone surrogate$"):
        tiny().encode(text)
