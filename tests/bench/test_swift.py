# SPDX-License-Identifier: Apache-2.0
"""Sublayers that a target can skip, measured on its own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests._support.tiny import convert, make_llama, reference_model
from tests.conftest import Run
from trtspec.bench.layer_search import Matcher, Text
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.model.decoder import Decoder
from trtspec.methods.layer_pruning import Skip

pytestmark = pytest.mark.integration

TEXTS: list[Text] = [((1, 2, 3, 4, 5), (9, 8, 7)), ((6,), (5, 4, 3, 2, 1)), ((7, 7, 7), (1,))]
SETS = [Skip(), Skip(attention=[1]), Skip(mlp=[0, 2]), Skip(attention=[0, 2], mlp=[1])]


def test_matchness_is_the_share_of_positions_where_the_reduced_model_agrees(tmp_path: Path) -> None:
    """The oracle is transformers: the full model reads the prompt, the reduced one the response."""
    source = make_llama(tmp_path / "hf", num_hidden_layers=3)
    whole = reference_model(source)
    said = [tuple(_answer(whole, prompt, len(said))) for prompt, said in TEXTS]
    texts = [(prompt, answer) for (prompt, _), answer in zip(TEXTS, said, strict=True)]
    model = Decoder(load_checkpoint(convert(source, tmp_path / "target")), 4, 16, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        matcher = Matcher(model, texts, 1)
        shares = [matcher.matchness(skip) for skip in SETS]
    assert matcher.places == 9
    assert shares[0] == 1.0
    assert shares == pytest.approx([_share(source, texts, skip) for skip in SETS])
    assert min(shares) < 1.0


def _answer(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


def _share(source: Path, texts: list[Text], skip: Skip) -> float:
    whole, part = reference_model(source), reference_model(source)
    agreed = places = 0
    with torch.inference_mode():
        for layer in skip.attention:
            part.model.layers[layer].self_attn.o_proj.weight.zero_()
        for layer in skip.mlp:
            part.model.layers[layer].mlp.down_proj.weight.zero_()
        for prompt, said in texts:
            before = torch.tensor([prompt[:-1]])
            cache = whole(before, use_cache=True).past_key_values if len(prompt) > 1 else None
            given = part(torch.tensor([[prompt[-1], *said[:-1]]]), past_key_values=cache, use_cache=True)
            agreed += sum(int(a == b) for a, b in zip(given.logits[0].argmax(-1).tolist(), said, strict=True))
            places += len(said)
    return agreed / places


def test_search_skips_prints_a_section_that_a_recipe_accepts(recipe: Path, trtspec: Run) -> None:
    arguments = ("--num-prompts", 3, "--max-tokens", 6, "--iterations", 9)
    done = trtspec("search-skips", recipe, *arguments)
    assert done.code == 0, done.err
    assert "9 sets tried" in done.err
    text = recipe.read_text()
    start, end = text.index("speculation:"), text.index("engine:")
    recipe.write_text(text[:start] + done.out + text[end:])
    assert trtspec("check", recipe).code == 0
    again = trtspec("search-skips", recipe, *arguments, "--json").document
    assert again["tried"] == 9
    assert again["places"] == 12  # two of three texts are held out from the search
    assert again["speculation"]["method"] == "swift"
    assert f"attention: {again['speculation']['options']['skip']['attention']}" in done.out
    speedups = [candidate["expected_speedup"] for candidate in again["candidates"]]
    assert speedups == sorted(speedups, reverse=True)
    assert len(speedups) == 5


def test_target_without_enough_generated_texts_is_rejected(recipe: Path, trtspec: Run) -> None:
    (recipe.parent / "prompts.jsonl").write_text('{"prompt": "the rest"}\n')
    refused = trtspec("search-skips", recipe)
    assert refused.code == 1
    assert "the target generated text for 1 prompts; the search needs at least two" in refused.err


def test_search_skips_exports_a_draft_that_a_recipe_accepts(recipe: Path, trtspec: Run) -> None:
    done = trtspec("search-skips", recipe, "--layers", "--num-prompts", 2, "--max-tokens", 4, "--export", "pruned")
    assert done.code == 0, done.err
    assert "of 4 layers" in done.err
    built = trtspec("build", recipe, "--set", "speculation.draft.model=./pruned")
    assert built.code == 0, built.err
    verified = trtspec("verify", "build/tiny", "--max-tokens", 8, "--json").document
    assert verified["ok"], verified
    refused = trtspec("search-skips", recipe, "--num-prompts", 2, "--max-tokens", 4, "--export", "pruned")
    assert refused.code == 1
    assert "already exists" in refused.err
