# SPDX-License-Identifier: Apache-2.0
"""Self-speculation: the output distribution is unchanged, and drafts come from the model without the sublayers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine import lossless
from trtspec.engine.drafting.base import DraftTokens
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.methods.swift.drafter import SwiftDrafter

pytestmark = pytest.mark.integration

SKIP = {"attention": [1], "mlp": [0]}
Load = Callable[..., Engine]


@pytest.fixture
def load() -> Iterator[Load]:
    """Load an engine that drafts with the remaining sublayers of a target; closed at the end."""
    engines = []

    def load(target: Path, draft_len: int = 4, **changes: Any) -> Engine:
        options = {"skip": changes.pop("skip", SKIP), "stop_below": changes.pop("stop_below", 0.0)}
        settings = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | changes
        engines.append(Engine(target, None, EngineSettings("swift", draft_len, options, **settings)))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


def without(model: Any, skip: dict[str, list[int]]) -> Any:
    """Turn sublayers of transformers' model into the identity by zeroing their output."""
    with torch.no_grad():
        for layer in skip["attention"]:
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
        for layer in skip["mlp"]:
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    return model


@pytest.mark.parametrize("shape", lossless.SHAPES.values(), ids=lossless.SHAPES.keys())
def test_greedy_text_equals_transformers(shape: dict[str, Any], tmp_path: Path, load: Load) -> None:
    source = make_model(tmp_path / "hf", **shape)
    engine = load(convert(source, tmp_path / "target"), max_batch_size=3)
    stats = lossless.assert_greedy_text(engine, reference_model(source))
    assert sum(each.drafted for each in stats) > 100


def test_drafts_without_idle_sublayers_are_all_accepted(tmp_path: Path, load: Load) -> None:
    """The skipped sublayers add nothing, so every draft is the target's token."""
    source = make_model(tmp_path / "hf", "llama", num_hidden_layers=3)
    idle = without(reference_model(source), {"attention": [0, 2], "mlp": [1]})
    idle.save_pretrained(tmp_path / "idle")
    engine = load(convert(tmp_path / "idle", tmp_path / "target", "bfloat16"), skip={"attention": [0, 2], "mlp": [1]})
    stats = lossless.assert_greedy_text(engine, reference_model(tmp_path / "idle"))
    assert all(each.acceptance_rate == 1.0 for each in stats)
    assert all(each.mean_accepted_len > 4 for each in stats)


def test_drafts_equal_transformers_without_the_skipped_sublayers(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is transformers' model of the whole target; a model without the sublayers continues its cache."""
    source = make_model(tmp_path / "hf", "llama", num_hidden_layers=3)
    drafted: list[tuple[list[int], list[int]]] = []
    propose = SwiftDrafter.propose

    def recorded(drafter: SwiftDrafter, texts: Any, depth: int, sampling: Any) -> DraftTokens:
        draft = propose(drafter, texts, depth, sampling)
        drafted.extend((list(text), row) for text, row in zip(texts, draft.tokens.tolist(), strict=True))
        return draft

    monkeypatch.setattr(SwiftDrafter, "propose", recorded)
    engine = load(convert(source, tmp_path / "target"), skip={"attention": [0, 1], "mlp": [1, 2]})
    engine.generate([EngineRequest(prompt, 12) for prompt in lossless.random_prompts(3)])
    whole, part = reference_model(source), reference_model(source)
    without(part, {"attention": [0, 1], "mlp": [1, 2]})
    assert len(drafted) > 20
    for text, tokens in drafted:
        assert tokens == _drafted_by_transformers(whole, part, text, len(tokens))


def _drafted_by_transformers(whole: Any, part: Any, text: list[int], count: int) -> list[int]:
    with torch.inference_mode():
        cache = whole(torch.tensor([text[:-1]]), use_cache=True).past_key_values if len(text) > 1 else None
        tokens, last = [], text[-1]
        for _ in range(count):
            given = part(torch.tensor([[last]]), past_key_values=cache, use_cache=True)
            cache, last = given.past_key_values, int(given.logits[0, -1].argmax())
            tokens.append(last)
    return tokens


def test_drafting_stops_where_confidence_is_below_the_threshold(tmp_path: Path, load: Load) -> None:
    source = make_model(tmp_path / "hf", "llama")
    target, model = convert(source, tmp_path / "target"), reference_model(source)
    always = lossless.assert_greedy_text(load(target), model)
    sometimes = lossless.assert_greedy_text(load(target, stop_below=0.3), model)
    assert 0 < sum(each.drafted for each in sometimes) < sum(each.drafted for each in always)
    never = load(target, stop_below=0.999).generate([EngineRequest((1, 2, 3), 20)])[0]
    assert never.stats.drafted == 0
    assert list(never.ids) == greedy(model, [1, 2, 3], 20)


@pytest.mark.parametrize("stop_below", [0.0, 0.45])
@pytest.mark.parametrize("sampling", [SamplingOptions(1.0), SamplingOptions(0.7, top_k=2)], ids=str)
def test_sampled_text_has_the_targets_distribution(
    sampling: SamplingOptions, stop_below: float, tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "hf", **lossless.DISTRIBUTION_SHAPE)
    engine = load(convert(source, tmp_path / "target"), 2, stop_below=stop_below)
    lossless.assert_targets_distribution(engine, reference_model(source), monkeypatch, sampling)


def test_acceptance_rule_without_residual_is_detected(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "hf", **lossless.DISTRIBUTION_SHAPE)
    engine = load(convert(source, tmp_path / "target"), 2)
    lossless.assert_wrong_rule_is_seen(engine, reference_model(source), monkeypatch)
