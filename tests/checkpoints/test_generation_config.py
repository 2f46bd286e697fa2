# SPDX-License-Identifier: Apache-2.0
"""The ids that end a text equal transformers', and invalid ids are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtspec.checkpoints.generation_config import find_end_ids, read_generation_config, special_token
from trtspec.core.errors import CheckpointError

CONFIGS: list[dict[str, Any]] = [
    {},
    {"eos_token_id": None},
    {"eos_token_id": 5},
    {"eos_token_id": [5]},
    {"eos_token_id": [1, 5, 1]},
    {"eos_token_id": []},
    {"text_config": {"eos_token_id": 7}},
    {"eos_token_id": [1, 106], "text_config": {"eos_token_id": 7}},
    {"eos_token_id": None, "text_config": {"eos_token_id": 7}},
    {"eos_token_id": None, "text_config": {"eos_token_id": [7, 8]}, "decoder": None},
    {"decoder": {"eos_token_id": 8}, "text_config": {"eos_token_id": 9}},
    {"decoder": {"hidden_size": 8}, "text_config": {"eos_token_id": 9}},
    {"generator": {"eos_token_id": 8}, "text_config": {"eos_token_id": 9}},
    {"decoder": {}, "text_config": {"eos_token_id": 9}},
]
GENERATION: list[dict[str, Any] | None] = [
    None, {}, {"eos_token_id": None}, {"eos_token_id": 2}, {"eos_token_id": [2, 3]}, {"_from_model_config": True},
    {"_from_model_config": True, "eos_token_id": 4}, {"eos_token_id": []},
]  # fmt: skip


def _write(root: Path, **documents: Any) -> Path:
    for name, document in documents.items():
        if document is not None:
            text = document if isinstance(document, str) else json.dumps(document)
            (root / f"{name}.json").write_text(text)
    return root


def _of_transformers(root: Path) -> tuple[int, ...]:
    """Return the end ids that `from_pretrained` of a model uses (GenerationMixin.adjust_generation_fn)."""
    from transformers import GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(str(root))
    except OSError:
        found = GenerationConfig.from_pretrained(str(root), config_file_name="config.json", _from_model_config=True)
    ids = found.eos_token_id
    return tuple(dict.fromkeys(ids if isinstance(ids, list) else [] if ids is None else [ids]))


@pytest.mark.parametrize("generation", GENERATION)
@pytest.mark.parametrize("config", CONFIGS)
def test_end_ids_match_transformers(config: dict[str, Any], generation: Any, tmp_path: Path) -> None:
    _write(tmp_path, config={"model_type": "llama", **config}, generation_config=generation)
    found = find_end_ids(tmp_path, lambda token: None)
    assert found.ids == _of_transformers(tmp_path)
    assert not found.departs
    if found.ids:
        assert found.source == ("config.json" if generation is None else "generation_config.json")


def test_generation_settings_in_config_json_match_transformers(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    config = {"model_type": "llama", "repetition_penalty": 1.2, "text_config": {"min_length": 3, "top_k": 9}}
    _write(tmp_path, config=config)
    theirs = GenerationConfig.from_pretrained(str(tmp_path), config_file_name="config.json", _from_model_config=True)
    ours = read_generation_config(tmp_path).values
    for key in ("repetition_penalty", "min_length", "top_k", "temperature", "do_sample"):
        assert ours.get(key) == getattr(theirs, key)


@pytest.mark.parametrize("section", ["llm_config", "language_config", "thinker_config"])
def test_end_ids_of_other_sections_and_tokenizer_are_fallbacks_marked_as_departing(
    section: str, tmp_path: Path
) -> None:
    _write(tmp_path, config={section: {"eos_token_id": 3}}, tokenizer_config={"eos_token": "</s>"})
    found = find_end_ids(tmp_path, {"</s>": 9}.get)
    assert (found.ids, found.source, found.departs) == ((3,), f"config.json: {section}", True)
    _write(tmp_path, config={})
    found = find_end_ids(tmp_path, {"</s>": 9}.get)
    assert (found.ids, found.departs) == ((9,), True)
    assert str(found) == "9 (the tokenizer's eos_token '</s>')"


def test_end_ids_of_nested_thinker_text_config_are_read(tmp_path: Path) -> None:
    _write(tmp_path, config={"thinker_config": {"text_config": {"eos_token_id": [3, 4]}}})
    assert find_end_ids(tmp_path, lambda token: None).ids == (3, 4)


BAD: list[tuple[Any, str]] = [
    (True, "eos_token_id: true is not a token id"),
    ("5", "eos_token_id: '5' is not a token id"),
    (["</s>"], "eos_token_id: '</s>' is not a token id"),
    (-1, "eos_token_id: -1 is not a token id"),
    (1.0, "eos_token_id: 1.0 is not a token id"),
    ({"id": 1}, "is not a token id"),
    ([[1]], "eos_token_id: \\[1\\] is not a token id"),
    ([1, False], "eos_token_id: false is not a token id"),
    (1 << 40, "is not a token id"),
    ([*range(300)], "it has 300 ids; at most 256"),
    (64, "eos_token_id: the id 64 is outside the vocabulary of 64"),
    ([1, 100], "eos_token_id: the id 100 is outside the vocabulary of 64"),
]


@pytest.mark.parametrize("file", ["config", "generation_config"])
@pytest.mark.parametrize(("value", "message"), BAD)
def test_invalid_end_id_is_rejected_with_its_file(file: str, value: Any, message: str, tmp_path: Path) -> None:
    _write(tmp_path, config={"vocab_size": 64})
    extra = {"vocab_size": 64} if file == "config" else {}
    _write(tmp_path, **{file: {"eos_token_id": value, **extra}})
    with pytest.raises(CheckpointError, match=message) as refused:
        find_end_ids(tmp_path, lambda token: None)
    assert refused.value.where == str(tmp_path / f"{file}.json")


@pytest.mark.parametrize("content", ['{"eos_token_id": 0,}', "[]", "", "null", '{"a": NaN}', '"x"', "\ufeff{}"])
def test_malformed_generation_config_is_rejected_with_its_file(content: str, tmp_path: Path) -> None:
    _write(tmp_path, config={"eos_token_id": 1}, generation_config=content)
    with pytest.raises(CheckpointError) as refused:
        find_end_ids(tmp_path, lambda token: None)
    assert refused.value.where == str(tmp_path / "generation_config.json")


def test_generation_config_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError):
        read_generation_config(tmp_path)


@pytest.mark.parametrize("decoder", [False, True])
def test_eos_token_of_the_tokenizer_matches_transformers(decoder: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from tests._support.tiny import make_tokenizer

    make_tokenizer(tmp_path)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a"}
    if decoder:
        config["added_tokens_decoder"] = {}
    _write(tmp_path, tokenizer_config=config, special_tokens_map={"eos_token": {"content": "<end>"}})
    assert special_token(tmp_path, "eos_token") == AutoTokenizer.from_pretrained(str(tmp_path)).eos_token
