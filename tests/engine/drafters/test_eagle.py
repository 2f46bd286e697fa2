# SPDX-License-Identifier: Apache-2.0
"""EAGLE in the engine: lossless, and drafting the head's predictions with static and dynamic trees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine.drafters.looping import make_looping_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    SHAPES,
    assert_greedy_text,
    assert_targets_distribution,
    assert_wrong_rule_is_seen,
    random_prompts,
)
from tests.methods.eagle_heads import Oracle, Tensors, convert_with, random_head, save_head
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import CheckpointError
from trtspec.engine.drafting import feature_drafters
from trtspec.engine.drafting.base import DraftSampling, DraftTokens
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats
from trtspec.engine.settings import EngineSettings
from trtspec.kernels.sampling import SamplingParams, pick

pytestmark = pytest.mark.integration

# Levels of different widths, ranks left out, and a leaf on every level.
CHOICES: tuple[tuple[int, ...], ...] = ((0,), (1,), (3,), (0, 0), (0, 2), (1, 0), (0, 0, 1), (1, 0, 0), (1, 0, 0, 0))
STATIC: dict[str, Any] = {"choices": [list(choice) for choice in CHOICES]}
# The frontier of the last level has more positions in the head's cache than the draft has nodes.
DYNAMIC: dict[str, Any] = {"dynamic": True, "top_k": 3, "depth": 5, "nodes": 8}
KINDS = pytest.mark.parametrize("options", [STATIC, DYNAMIC], ids=["static", "dynamic"])


def make_engine(target: Path, options: dict[str, Any], **settings: Any) -> Engine:
    chosen = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | settings
    return Engine(target, None, EngineSettings("eagle", options=options, **chosen))


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES.keys())
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A target of some shape with a random head for all trees, and transformers' model of the target."""
    root = tmp_path_factory.mktemp("converted")
    source = make_model(root / "hf", **request.param)
    head = save_head(root / "head", random_head())
    return convert_with(source, head, root / "target", {}), reference_model(source)


@pytest.mark.parametrize("options", [{}, DYNAMIC], ids=["static", "dynamic"])
def test_greedy_text_with_random_head_equals_transformers(options: dict[str, Any], converted: tuple[Path, Any]) -> None:
    """The head is random and therefore hardly ever right."""
    target, model = converted
    engine = make_engine(target, options)
    stats = assert_greedy_text(engine, model, 12)
    engine.close()
    assert stats[0].drafted > 50


class Knowing:
    """A target and a head that both depend mostly on the last token."""

    def __init__(self, root: Path) -> None:
        self.source = make_looping_model(root / "hf")
        self.model = reference_model(self.source)
        self.tensors = random_head(scale=0.1, bias=True, copies=10.0)
        self.head = save_head(root / "head", self.tensors, bias=True)
        # one checkpoint is used for all trees
        self.target = convert_with(self.source, self.head, root / "target", STATIC)
        self.prompts = random_prompts(8)


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Knowing:
    return Knowing(tmp_path_factory.mktemp("knowing"))


@KINDS
@pytest.mark.parametrize("settings", [{}, {"max_batch_size": 3, "max_num_tokens": 16}], ids=["", "few rows, chunks"])
def test_greedy_text_with_accurate_head_equals_transformers(
    settings: dict[str, int], options: dict[str, Any], knowing: Knowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(knowing.target, options, **settings)
    cache = engine.speculator.target.cache
    compact, moved = cache.compact, []
    monkeypatch.setattr(cache, "compact", lambda moves: (moved.extend(moves), compact(moves)))
    stats = assert_greedy_text(engine, knowing.model)
    engine.close()
    assert sum(stats, Stats()).mean_accepted_len > 1.5
    assert len(moved) > 20, "only first children were accepted"


def drafts_of(engine: Engine, requests: list[EngineRequest]) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Return the drafts for the requests: a row's text, and the tokens on the path to every node."""
    propose, found = engine.speculator.drafter.propose, []

    def watched(texts: list[list[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        draft = propose(texts, depth, sampling)
        assert draft.tree is not None
        parents = draft.tree.parents.tolist() * (len(texts) if len(draft.tree.parents) == 1 else 1)
        for text, tokens, above in zip(texts, draft.tokens.tolist(), parents, strict=True):
            paths: list[tuple[int, ...]] = [()]
            for token, parent in zip(tokens, above[1:], strict=True):
                paths.append((*paths[parent], token))
            found.append((tuple(text), paths[1:]))
        return draft

    engine.speculator.drafter.propose = watched  # type: ignore[method-assign]
    engine.generate(requests)
    return found


@pytest.mark.parametrize("tensors", [random_head(bias=True), None], ids=["random", "knowing"])
@KINDS
def test_draft_trees_equal_the_oracle_with_static_and_dynamic_trees(
    options: dict[str, Any], tensors: Tensors | None, knowing: Knowing, tmp_path: Path
) -> None:
    """Prompts of different lengths enter in chunks, and rows one after the other."""
    head = save_head(tmp_path / "head", tensors or knowing.tensors)
    engine = make_engine(
        convert_with(knowing.source, head, tmp_path / "target", options), options, max_batch_size=2, max_num_tokens=16
    )
    found = drafts_of(engine, [EngineRequest(prompt, 12) for prompt in knowing.prompts[:4]])
    engine.close()
    oracle = Oracle(knowing.model, tensors or knowing.tensors)
    assert len(found) > 12
    for text, paths in found:
        if options is DYNAMIC:
            expected = oracle.dynamic(text, DYNAMIC["top_k"], DYNAMIC["depth"], DYNAMIC["nodes"])
        else:
            depth = len(paths[-1])  # near the end of a request the tree is truncated
            expected = oracle.static(text, [choice for choice in CHOICES if len(choice) <= depth])
        assert paths == expected


@KINDS
def test_request_draft_len_limits_drafts_and_keeps_the_text(options: dict[str, Any], knowing: Knowing) -> None:
    """The second request begins to draft late, together with the third, and must then process many tokens."""
    engine = make_engine(knowing.target, options, max_batch_size=2)
    prompt = knowing.prompts[0]
    requests = [EngineRequest(prompt, length, draft_len=depth) for length, depth in ((9, 0), (40, 0), (40, 2), (20, 1))]
    results = engine.generate(requests)
    engine.close()
    expected = greedy(knowing.model, list(prompt), 40)
    assert [list(result.ids) for result in results] == [expected[:length] for length in (9, 40, 40, 20)]
    assert [result.stats.drafted > 0 for result in results] == [False, False, True, True]


@KINDS
def test_sampled_results_are_the_same_in_a_batch_and_alone(options: dict[str, Any], knowing: Knowing) -> None:
    """The batch has greedy requests, and requests that truncate to fewer tokens than are drafted."""
    engine = make_engine(knowing.target, options, max_batch_size=4)
    kinds = [
        SamplingOptions(),
        SamplingOptions(0.8, seed=1),
        SamplingOptions(1.5, seed=2),
        SamplingOptions(0.9, top_k=2, seed=3),
    ]
    requests = [EngineRequest(prompt, 20 + row, kinds[row % 4]) for row, prompt in enumerate(knowing.prompts)]
    together = engine.generate(requests)
    alone = [engine.generate([request])[0] for request in requests]
    engine.close()
    assert together == alone
    assert sum(result.stats.accepted for result in together) > 20
    for request, result in zip(requests[::4], together[::4], strict=True):
        assert list(result.ids) == greedy(knowing.model, list(request.prompt_ids), request.max_new_tokens)


# For a target of three words.
SMALL_STATIC: dict[str, Any] = {"choices": [[0], [1], [2], [0, 0]]}
SMALL_DYNAMIC: dict[str, Any] = {"dynamic": True, "top_k": 2, "depth": 3, "nodes": 5}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of three words, converted with a head."""
    root, hidden = tmp_path_factory.mktemp("small"), DISTRIBUTION_SHAPE["hidden_size"]
    source = make_model(root / "hf", **DISTRIBUTION_SHAPE)
    head = save_head(root / "head", random_head(hidden), hidden=hidden, vocab=3)
    return source, convert_with(source, head, root / "target", SMALL_STATIC)


@pytest.fixture(params=[SMALL_STATIC, SMALL_DYNAMIC], ids=["static", "dynamic"])
def small_engine(
    request: pytest.FixtureRequest, small: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    monkeypatch.setattr(feature_drafters, "draw_each", one_by_one)
    engine = make_engine(small[1], request.param, max_seq_len=32)
    yield engine
    engine.close()


@pytest.mark.parametrize("sampling", [SamplingOptions(1.0), SamplingOptions(0.7, top_k=2)], ids=["plain", "truncated"])
def test_sampled_text_has_the_targets_distribution(
    sampling: SamplingOptions, small: tuple[Path, Path], small_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_targets_distribution(small_engine, reference_model(small[0]), monkeypatch, sampling)


def test_acceptance_rule_without_residual_is_detected(
    small: tuple[Path, Path], small_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all three words are drafted at the first position, so that errors can only occur from the second on
    assert_wrong_rule_is_seen(small_engine, reference_model(small[0]), monkeypatch, new_tokens=4)


def one_by_one(sampling: DraftSampling, weights: Tensor, column: int) -> Tensor:
    """Return the result of `static_tree.draw_each` with the draws of the enumeration of a distribution.

    Rows without remaining probability, such as beyond a request's top_k, are not enumerated.
    """
    drawn = [
        sampling.draw(each / each.sum(-1, keepdim=True), column + at)
        if each.any()
        else pick(each, sampling.uniforms[:, column + at])
        for at, each in enumerate(weights.unbind(1))
    ]
    return torch.stack(drawn, 1)


def test_vectorized_node_sampling_equals_sequential_sampling() -> None:
    draw = torch.Generator().manual_seed(3)
    probs = torch.rand(4, 3, 7, generator=draw)
    sampling = DraftSampling(SamplingParams(*[torch.ones(4)] * 3, False), torch.rand(4, 9, generator=draw))
    assert torch.equal(feature_drafters.draw_each(sampling, probs, 5), one_by_one(sampling, probs, 5))


@KINDS
def test_typical_acceptance_raises_the_acceptance_rate(options: dict[str, Any], knowing: Knowing) -> None:
    requests = [EngineRequest(prompt, 30, SamplingOptions(1.2, seed=3)) for prompt in knowing.prompts]
    exact, lossy = make_engine(knowing.target, options), make_engine(knowing.target, options | {"lossy": True})
    strict, loose = (sum((r.stats for r in engine.generate(requests)), Stats()) for engine in (exact, lossy))
    exact.close()
    lossy.close()
    assert loose.acceptance_rate > strict.acceptance_rate


def test_head_split_across_ranks_gives_the_same_results(knowing: Knowing, tmp_path: Path) -> None:
    """The head has one key head, which is on both ranks."""
    target = convert_with(knowing.source, knowing.head, tmp_path / "target", STATIC, mapping=ParallelMapping(2))
    requests = [EngineRequest(prompt, 20) for prompt in knowing.prompts]
    of_two, of_one = make_engine(target, STATIC), make_engine(knowing.target, STATIC)
    assert of_two.generate(requests) == of_one.generate(requests)
    of_two.close()
    of_one.close()


def test_quantized_target_text_is_the_same_with_and_without_head(knowing: Knowing, tmp_path: Path) -> None:
    target = convert_with(knowing.source, knowing.head, tmp_path / "target", STATIC, scheme=Scheme("fp8_rowwise"))
    requests = [EngineRequest(prompt, 30) for prompt in knowing.prompts]
    engine, alone = (
        make_engine(target, STATIC),
        Engine(target, None, EngineSettings(max_seq_len=128, device="cpu")),
    )
    found, expected = engine.generate(requests), alone.generate(requests)
    engine.close()
    alone.close()
    assert [result.ids for result in found] == [result.ids for result in expected]
    assert sum(result.stats.accepted for result in found) > 0


def test_checkpoint_without_head_is_rejected_with_a_hint(knowing: Knowing, tmp_path: Path) -> None:
    target = convert(knowing.source, tmp_path / "target")
    with pytest.raises(CheckpointError) as caught:
        make_engine(target, STATIC)
    hint = "convert it with method: eagle and the head as speculation.draft"
    assert str(caught.value) == f"{target}: does not contain an EAGLE head\nhint: {hint}"
