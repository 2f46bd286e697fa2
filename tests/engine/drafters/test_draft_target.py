# SPDX-License-Identifier: Apache-2.0
"""A smaller model as the draft: quantized, and stopping at low confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests._support.tiny import convert, make_llama, make_model, reference_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    SHAPES,
    assert_greedy_text,
    assert_targets_distribution,
    random_prompts,
)
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.engine.drafting.base import DraftSampling
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.kernels.sampling import SamplingParams

pytestmark = pytest.mark.integration

DRAFT_LEN = 4


def load(target: Path, draft: Path, **options: Any) -> Engine:
    settings = EngineSettings("draft_target", DRAFT_LEN, options, max_batch_size=8, max_seq_len=128, device="cpu")
    return Engine(target, draft, settings)


@pytest.mark.parametrize("weights", ["fp8_rowwise", "fp8"])
@pytest.mark.parametrize("shape", ["plain", "tied"])
def test_quantized_draft_keeps_greedy_text_and_lowers_acceptance(shape: str, weights: str, tmp_path: Path) -> None:
    """The draft is the target rounded to FP8, which is often but not always right."""
    source = make_model(tmp_path / "hf", **SHAPES[shape])
    measured = Activations(
        inputs=dict.fromkeys((f"transformer.layers.{n}.{m}" for n in range(2) for m in MODULES), 8.0)
    )
    target = convert(source, tmp_path / "target")
    draft = convert(source, tmp_path / "draft", scheme=Scheme(weights), activations=measured)
    engine = load(target, draft)
    stats = assert_greedy_text(engine, reference_model(source))
    engine.close()
    drafted, accepted = (sum(getattr(one, name) for one in stats) for name in ("drafted", "accepted"))
    assert 0.2 * drafted < accepted < drafted


MODULES = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return the source of a target, its conversion, and the conversion of a draft."""
    root = tmp_path_factory.mktemp("pair")
    source = make_llama(root / "hf", scale=0.15)
    draft = convert(make_llama(root / "hf-draft", seed=1, num_hidden_layers=1), root / "draft")
    return source, convert(source, root / "target"), draft


def test_greedy_text_with_early_stopping_equals_transformers(pair: tuple[Path, Path, Path]) -> None:
    source, target, draft = pair
    engine = load(target, draft, stop_below=0.15)
    stats = assert_greedy_text(engine, reference_model(source))
    engine.close()
    assert 0 < sum(one.drafted for one in stats) < 0.8 * sum(DRAFT_LEN * one.steps for one in stats)


def test_draft_stops_before_the_first_token_below_stop_below(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The oracle is the draft run token by token with transformers; rows stop at different positions."""
    source = make_llama(tmp_path / "hf-draft", seed=3, num_hidden_layers=1)
    model, prompts = reference_model(source), random_prompts(8)
    engine = load(pair[1], convert(source, tmp_path / "draft"), stop_below=0.2)
    texts = [[*prompt, 5] for prompt in prompts]
    with torch.inference_mode():
        engine.speculator.drafter.begin(prompts, 0, 512)
        draft = engine.speculator.drafter.propose(texts, DRAFT_LEN, None)
    engine.close()
    for text, row, length in zip(texts, draft.tokens.tolist(), draft.lens, strict=True):
        sure = []
        while len(sure) < DRAFT_LEN:
            with torch.inference_mode():
                probs = model(torch.tensor([[*text, *sure]])).logits[0, -1].softmax(-1)
            if probs.max() < 0.2:
                break
            sure.append(int(probs.argmax()))
        assert row[:length] == sure
    assert len(set(draft.lens)) > 2


@pytest.mark.parametrize("options", [{"stop_below": 0.7}, {"use_draft_logits": False}], ids=str)
def test_sampled_text_with_draft_options_has_the_targets_distribution(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [make_model(tmp_path / f"hf{seed}", seed=seed, **DISTRIBUTION_SHAPE) for seed in (0, 1)]
    engine = load(*[convert(source, tmp_path / f"c{seed}") for seed, source in enumerate(sources)], **options)
    assert_targets_distribution(engine, reference_model(sources[0]), monkeypatch, SamplingOptions(1.0))
    engine.close()


def test_draft_without_logits_is_independent_of_the_seed(pair: tuple[Path, Path, Path]) -> None:
    """Without logits the draft is greedy and verified as deterministic, as in engines that get only tokens."""
    _, target, draft = pair
    engine = load(target, draft, use_draft_logits=False)
    proposed = []
    for seed in (1, 2):
        uniforms = torch.rand((1, DRAFT_LEN), generator=torch.Generator().manual_seed(seed))
        draws = DraftSampling(
            SamplingParams(torch.tensor([1.0]), torch.tensor([0]), torch.tensor([1.0]), False), uniforms
        )
        with torch.inference_mode():
            engine.speculator.drafter.begin([[1, 2, 3]], 0, 512)
            proposed.append(engine.speculator.drafter.propose([[1, 2, 3, 4]], DRAFT_LEN, draws))
    engine.close()
    assert proposed[0].tokens.tolist() == proposed[1].tokens.tolist()
    assert proposed[0].probs is None
