# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in many forms, compared with transformers: the same greedy text, or an error with the reason.

TRTSPEC_VARIANTS=400 runs 400 instead of 40; TRTSPEC_VARIANTS_END_IDS=1 varies the end ids too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests._support.tiny import convert, reference_model
from tests.families.variants import POSITIONS, Variant, variants
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.settings import EngineSettings

COUNT = int(os.environ.get("TRTSPEC_VARIANTS", "40"))
WITH_ENDS = os.environ.get("TRTSPEC_VARIANTS_END_IDS", "") == "1"
VARIANTS = list(variants(COUNT, WITH_ENDS))
NEW_TOKENS, TIE = 14, 1e-4  # tie: relative to the largest logit
# Prompts and maximum text lengths: one below and one above the length of LongRoPE's short factors.
ROUNDS = [
    ([(7,), (3, 11, 60, 2, 33), tuple(range(2, 18))], 32),
    ([tuple(7 * number % 64 for number in range(40))], POSITIONS),
]


def text_of(target: Path, prompts: list[tuple[int, ...]], end_ids: tuple[int, ...], longest: int) -> list[list[int]]:
    """Return our engine's greedy continuations."""
    settings = EngineSettings("ngram", draft_len=3, max_seq_len=longest, device="cpu", dtype="float32")
    engine = Engine(target, None, settings)
    try:
        results = engine.generate([EngineRequest(prompt, NEW_TOKENS, end_ids=end_ids) for prompt in prompts])
    finally:
        engine.close()
    return [list(result.ids) for result in results]


@torch.inference_mode()
def difference(source: Path, prompts: list[tuple[int, ...]], texts: list[list[int]], end_ids: tuple[int, ...]) -> str:
    """Return where texts differ from transformers' generate, or ""; ties may go either way."""
    model = reference_model(source)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        told = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        theirs = told[:-1] if told[-1] in end_ids else told  # our texts end before an end id
        if theirs == text:
            continue
        place = next((n for n, pair in enumerate(zip(theirs, text, strict=False)) if pair[0] != pair[1]), len(theirs))
        if place >= min(len(theirs), len(text)):
            return f"{prompt}: {text}, transformers {theirs}"
        logits = model(torch.tensor([[*prompt, *theirs[:place]]])).logits[0, -1]
        if logits[theirs[place]] - logits[text[place]] > TIE * logits.abs().max():
            return f"{prompt}: {text}, transformers {theirs}"
    return ""


def end_ids_of(source: Path) -> tuple[int, ...]:
    """Return the end ids according to the source's files."""
    if not WITH_ENDS:
        return ()
    from tests._support.tiny import make_tokenizer

    make_tokenizer(source)
    return tuple(Tokenizer(source).end_ids)


@pytest.mark.integration
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variant_gives_the_text_of_transformers_or_is_rejected(variant: Variant, tmp_path: Path) -> None:
    source = variant.write(tmp_path / "hf")
    if variant.refuses:
        with pytest.raises(CheckpointError) as caught:
            convert(source, tmp_path / "c")
        assert caught.value.hint
        return
    target, end_ids = convert(source, tmp_path / "c"), end_ids_of(source)
    for prompts, longest in ROUNDS:
        assert difference(source, prompts, text_of(target, prompts, end_ids, longest), end_ids) == ""


def test_variants_are_distinct_and_cover_every_form() -> None:
    many = list(variants(400, with_ends=True))
    assert len(set(many)) > 390
    from tests.families.variants import DIMENSIONS

    used = {(key, form) for variant in many for key, form in variant.chosen}
    assert used == {(key, form) for key, forms in DIMENSIONS.items() for form in forms}
