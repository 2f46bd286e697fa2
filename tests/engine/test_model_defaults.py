# SPDX-License-Identifier: Apache-2.0
"""generation_config.json as defaults of requests: the text equals transformers' with the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_llama
from tests.engine.lossless import random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.model_defaults import load_model_defaults
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

LEN = 20
SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 0.6},
    {"suppress_tokens": [*range(20)]},
    {"suppress_tokens": [3], "eos_token_id": 3},
    {"begin_suppress_tokens": [*range(40)]},
    {"bad_words_ids": [[7], [8, 9], *([token, token] for token in range(64))], "repetition_penalty": 0.5},
    {"bad_words_ids": [[5], *([token] for token in range(20, 60))], "eos_token_id": 5},
    {"min_new_tokens": 9, "eos_token_id": [*range(32)]},
    {"min_length": 14, "eos_token_id": [*range(32)]},
    {"min_length": 30, "min_new_tokens": 2, "eos_token_id": [*range(32)]},
    {"sequence_bias": [[[11], 6.0], [[12], -6.0]], "repetition_penalty": 1.2},
    {"repetition_penalty": 1.1, "no_repeat_ngram_size": 2, "suppress_tokens": [1, 2], "begin_suppress_tokens": [4],
     "min_new_tokens": 3, "eos_token_id": 6, "temperature": 0.6, "do_sample": True},
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("hf"), seed=3, dtype="float32", scale=0.3)


@pytest.fixture(scope="module")
def engine(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    out = convert(source, tmp_path_factory.mktemp("converted") / "t", "bfloat16")
    settings = EngineSettings("ngram", 5, {"max_match": 3}, max_batch_size=4, max_seq_len=128)
    opened = Engine(out, None, settings, None)
    yield opened
    opened.close()


def _greedy(source: Path, prompt: tuple[int, ...]) -> list[int]:
    """Return transformers' text with the directory's settings and the served weights."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).float().eval()
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=LEN, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in found[0, len(prompt) :]]


@pytest.mark.parametrize("settings", SETTINGS)
def test_greedy_text_equals_transformers_with_and_without_drafts(
    settings: dict[str, Any], source: Path, engine: Engine
) -> None:
    (source / "generation_config.json").write_text(json.dumps(settings))
    defaults = load_model_defaults(source)
    eos = settings.get("eos_token_id", [])
    ends = tuple(eos if isinstance(eos, list) else [eos])
    for prompt in random_prompts(3):
        theirs = _greedy(source, prompt)
        if theirs[-1] in ends:
            del theirs[-1]
        for draft_len in (None, 0):
            edits = defaults.edits_for(len(prompt))
            asked = EngineRequest(prompt, LEN, SamplingOptions(), ends, edits=edits, draft_len=draft_len)
            assert list(engine.generate([asked])[0].ids) == theirs


def test_neutral_settings_give_no_defaults(source: Path) -> None:
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "temperature": 0.6, "top_p": 0.9, "min_length": 0}
    (source / "generation_config.json").write_text(json.dumps(neutral))
    assert load_model_defaults(source).edits_for(5) == load_model_defaults(source.parent).edits_for(5)
    assert load_model_defaults(source).sampling == {}


def test_sampling_model_has_its_settings_as_sampling_defaults(source: Path) -> None:
    (source / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6}))
    assert load_model_defaults(source).sampling == {"temperature": 0.6, "top_k": 50, "top_p": 1.0}
