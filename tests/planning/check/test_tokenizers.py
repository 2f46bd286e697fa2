# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of `check` for tokenizers, end ids and generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama, make_tokenizer
from tests.conftest import Run
from tests.planning.check.finding import DRAFT, TARGET, rewrite, the_problem


def _problems(trtspec: Run, recipe: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trtspec("check", recipe, "--json", *arguments).document["problems"]
    return found


def _end_ids(trtspec: Run, recipe: Path) -> tuple[list[int], str]:
    (found,) = trtspec("check", recipe, "--json").document["recipes"]
    return found["end_ids"], found["end_ids_from"]


def test_end_ids_are_reported_with_their_file(trtspec: Run, recipe: Path) -> None:
    assert _end_ids(trtspec, recipe) == ([0], "generation_config.json")
    (recipe.parent / "target" / "generation_config.json").unlink()
    rewrite(recipe.parent / "target" / "config.json", eos_token_id=[5, 6])
    assert _end_ids(trtspec, recipe) == ([5, 6], "config.json")
    assert _problems(trtspec, recipe) == []
    assert trtspec("check", recipe).out.startswith("end ids: 5, 6 (config.json)\n")
    assert "5, 6 (config.json)" in trtspec("inspect", recipe.parent / "target").out


def test_end_id_only_in_the_tokenizer_is_a_warning(trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "target" / "generation_config.json").unlink()
    assert _end_ids(trtspec, recipe) == ([0], "the tokenizer's eos_token '<end>'")
    (problem,) = _problems(trtspec, recipe)
    assert (problem["severity"], problem["code"], problem["path"]) == ("warning", "end-ids", "target.model")
    assert "transformers' generate finds no end id and does not stop there" in problem["message"]


@pytest.mark.parametrize("has_file", [False, True])
def test_missing_end_id_is_a_warning(has_file: bool, trtspec: Run, recipe: Path) -> None:
    settings = recipe.parent / "target" / "generation_config.json"
    if has_file:
        settings.write_text("{}")
        rewrite(recipe.parent / "target" / "config.json", eos_token_id=7)
    else:
        settings.unlink()
        (recipe.parent / "target" / "tokenizer_config.json").unlink()
    (problem,) = _problems(trtspec, recipe)
    assert (problem["severity"], problem["code"]) == ("warning", "end-ids")
    assert "the model lacks an end id, so every response runs to its max_tokens" in problem["message"]
    assert ("(config.json has 7)" in problem["message"]) == has_file


@pytest.mark.parametrize("value", [True, "0", -1, [0, PAIR_VOCAB], [0.5]])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_invalid_end_id_is_an_error_with_its_file(name: str, value: Any, trtspec: Run, recipe: Path) -> None:
    if name == "config.json":
        (recipe.parent / "target" / "generation_config.json").unlink()
    rewrite(recipe.parent / "target" / name, eos_token_id=value)
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message.startswith(f"target/{name}: eos_token_id: ")


@pytest.mark.parametrize("content", [b'{"eos_token_id": 0,}', b"[]", b"", b"\xff\xfe", b"null"])
def test_unreadable_generation_config_is_an_error(content: bytes, trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "target" / "generation_config.json").write_bytes(content)
    message, hint = the_problem(trtspec, recipe, TARGET)
    assert message.startswith("target/generation_config.json: ")
    assert hint == "repair the file, or remove it to use the end ids of config.json"


def _add_token(root: Path, at: int, content: str = "<more>") -> None:
    document = json.loads((root / "tokenizer.json").read_text())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": at, "content": content})
    (root / "tokenizer.json").write_text(json.dumps(document))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_token_without_an_embedding_row_is_an_error(role: str, trtspec: Run, recipe: Path) -> None:
    _add_token(recipe.parent / role, PAIR_VOCAB)
    message, hint = the_problem(trtspec, recipe, TARGET if role == "target" else DRAFT)
    said = f"the token '<more>' has the id {PAIR_VOCAB}, but the embedding has {PAIR_VOCAB} rows"
    assert message == f"{role}/tokenizer.json: {said}: texts that contain it cannot be served"
    assert hint is not None
    assert "resize_token_embeddings" in hint


ADDED: list[dict[str, Any]] = [
    {"tokenizer_config.json": {"eos_token": "<end>", "added_tokens_decoder": {"9999": {"content": "<more>"}}}},
    {"tokenizer_config.json": {"eos_token": "<end>", "pad_token": "<more>"}},
    {"added_tokens.json": {"<more>": 3}},
    {"special_tokens_map.json": {"pad_token": {"content": "<more>"}}},
]


@pytest.mark.parametrize("documents", ADDED)
def test_token_added_by_transformers_needs_an_embedding_row(
    documents: dict[str, Any], trtspec: Run, recipe: Path
) -> None:
    target = recipe.parent / "target"
    for name, document in documents.items():
        (target / name).write_text(json.dumps(document))
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == (
        f"target: transformers adds the token '<more>' to the tokenizer as id {PAIR_VOCAB}, but the embedding has"
        f" {PAIR_VOCAB} rows"
    )
    make_llama(target, vocab_size=PAIR_VOCAB + 1, **TARGET_SHAPE)
    make_tokenizer(target)
    for name, document in documents.items():
        (target / name).write_text(json.dumps(document))
    (problem,) = _problems(trtspec, recipe)
    assert problem["severity"] == "warning"
    assert f"tokenizer.json lacks the token '<more>', which transformers adds as id {PAIR_VOCAB}" in problem["message"]


def test_generation_settings_not_applied_to_requests_are_a_warning(trtspec: Run, recipe: Path) -> None:
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.3, "num_beams": 4,
                "min_new_tokens": 2, "suppress_tokens": [3], "max_length": 4096, "length_penalty": 1.0}  # fmt: skip
    rewrite(recipe.parent / "target" / "generation_config.json", **settings)
    (problem,) = _problems(trtspec, recipe)
    assert (problem["severity"], problem["code"], problem["path"]) == ("warning", "generation-config", "target.model")
    for said in ("do_sample True", "temperature 0.6", "top_p 0.9", "repetition_penalty 1.3", "min_new_tokens 2",
                 "suppress_tokens [3]", "num_beams 4"):  # fmt: skip
        assert said in problem["message"]
    assert problem["hint"] == (
        "serving.defaults: model makes them the defaults (engine.backend: embedded); a request may set"
        " repetition_penalty, min_tokens, temperature, top_p"
    )
    (problem,) = _problems(trtspec, recipe, "--set", "serving.defaults=model")
    assert problem["message"].endswith(": num_beams 4: not applied to requests, unlike in transformers' generate")


MODEL_DEFAULTS = ("--set", "serving.defaults=model", "--set", "engine.gpu=h100")
NEUTRAL = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.0, "num_beams": 1,
           "no_repeat_ngram_size": 0, "max_length": 4096, "use_cache": True, "min_length": 0}  # fmt: skip


def test_neutral_generation_settings_have_no_warning(trtspec: Run, recipe: Path) -> None:
    rewrite(recipe.parent / "target" / "generation_config.json", **NEUTRAL)
    assert _problems(trtspec, recipe) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is 0, expected a number"),
        ({"repetition_penalty": "1.3"}, "repetition_penalty is 1.3, expected a number"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size is -2, expected a whole number"),
        ({"min_new_tokens": True}, "min_new_tokens is True, expected a whole number"),
        ({"suppress_tokens": 3}, "suppress_tokens is 3, expected a list of token ids"),
        ({"bad_words_ids": [[]]}, "bad_words_ids is [[]], expected at most 4096 lists"),
        ({"sequence_bias": {"3": 1.0}}, "expected a list of [token ids, bias]"),
        ({"suppress_tokens": [PAIR_VOCAB]}, f"the id {PAIR_VOCAB} is outside of the vocabulary of {PAIR_VOCAB}"),
    ],
)
def test_invalid_generation_settings_are_an_error(
    settings: dict[str, Any], said: str, trtspec: Run, recipe: Path
) -> None:
    rewrite(recipe.parent / "target" / "generation_config.json", **settings)
    (problem,) = _problems(trtspec, recipe, "--set", "serving.defaults=model")
    assert (problem["severity"], problem["code"], problem["path"]) == (
        "error", "generation-config", "serving.defaults"
    )  # fmt: skip
    assert said in problem["message"]


def test_model_defaults_are_an_error_on_an_unsupported_backend(trtspec: Run, recipe: Path) -> None:
    found = _problems(trtspec, recipe, *MODEL_DEFAULTS, "--set", "engine.backend=tensorrt_llm")
    assert [each["severity"] for each in found if each["path"] == "serving.defaults"] == ["error"]


@pytest.mark.parametrize("backend", ["vllm", "llmapi", "sglang"])
def test_model_defaults_are_sampling_options_on_backends_without_penalties(
    backend: str, trtspec: Run, recipe: Path
) -> None:
    settings = {"do_sample": True, "temperature": 0.6, "repetition_penalty": 1.3, "min_p": 0.1}
    rewrite(recipe.parent / "target" / "generation_config.json", **settings)
    found = _problems(trtspec, recipe, *MODEL_DEFAULTS, "--set", f"engine.backend={backend}")
    (problem,) = [each for each in found if each["path"] == "serving.defaults" and each["code"] == "generation-config"]
    assert (problem["severity"], problem["hint"]) == ("warning", "this backend supports sampling only")
    assert ": repetition_penalty 1.3, min_p 0.1: not applied" in problem["message"]
