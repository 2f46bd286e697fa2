# SPDX-License-Identifier: Apache-2.0
"""The ids of a tokenizer's files, against transformers' AutoTokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import make_tokenizer
from trtspec.checkpoints.vocabulary import VocabularyFiles
from trtspec.core.errors import CheckpointError

FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
ADDED = {"content": "<x>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
DOCUMENTS: list[dict[str, Any]] = [
    {},
    {"tokenizer_config": {"eos_token": "<end>"}},
    {"tokenizer_config": {"pad_token": "<x>"}},
    {"tokenizer_config": {"pad_token": "<x>", "mask_token": "<y>", "eos_token": "<x>"}},
    {"tokenizer_config": {"added_tokens_decoder": {"2000": ADDED}}},
    {"tokenizer_config": {"added_tokens_decoder": {"9": ADDED | {"content": "<y>"}, "2": ADDED}}},
    {"tokenizer_config": {"additional_special_tokens": ["<x>", "a"]}},
    {"tokenizer_config": {"extra_special_tokens": ["<x>"]}},
    {"tokenizer_config": {}, "special_tokens_map": {"pad_token": ADDED}},
    {"tokenizer_config": {}, "added_tokens": {"<x>": 2000, "<y>": 3}},
    {"tokenizer_config": {"added_tokens_decoder": {}}, "added_tokens": {"<x>": 2000}},
    {"tokenizer_config": {"added_tokens_decoder": {}}, "special_tokens_map": {"pad_token": "<x>"}},
]


def _write(root: Path, documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        (root / f"{name}.json").write_text(json.dumps(document))


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_ids_including_tokens_added_by_transformers_match_auto_tokenizer(
    documents: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path)
    config = FAST | documents.get("tokenizer_config", {})
    _write(tmp_path, documents | {"tokenizer_config": config})
    files = VocabularyFiles(tmp_path)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path)).get_vocab()
    assert {**files.ids, **files.added_by_transformers()} == theirs


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordlevel"])
def test_ids_and_largest_id_match_the_tokenizers_library(kind: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    if kind == "bpe":
        make_tokenizer(tmp_path)
    else:
        words = ["<unk>", "a", "b", '"quoted": 999']
        model = (
            models.Unigram([(word, -1.0) for word in words], unk_id=0)
            if kind == "unigram"
            else models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>")
        )
        Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_tokens(["<more>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    theirs = tokenizer.get_vocab()
    files = VocabularyFiles(tmp_path)
    assert files.ids == theirs
    assert files.largest() == ("<more>", max(theirs.values()))
    assert [files.reaches(limit) for limit in (len(theirs) - 1, len(theirs))] == [True, False]


BAD = ['{"model": {}}', '{"model": {"vocab": {"a": true}}}', '{"model": {"vocab": {"a": -1}}}', "{", "[]", "\xff",
       '{"model": {"vocab": {"a": 1}}, "added_tokens": 3}', '{"model": {"vocab": [3]}}', "[" * 100_000,
       '{"a": [' + "0," * 5_000_000 + "0]}"]  # fmt: skip


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_tokenizer_file_without_valid_tokens_is_rejected(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError) as refused:
        VocabularyFiles(tmp_path).ids  # noqa: B018
    assert refused.value.where == str(tmp_path / "tokenizer.json")
