# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 in the engine: lossless, and drafting by the paper's formula, recomputed over the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests._support.tiny import SHAPE, convert, greedy, make_model, reference_model
from tests.engine.drafters.observed import Observed
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    SHAPES,
    assert_greedy_text,
    assert_targets_distribution,
    assert_wrong_rule_is_seen,
    random_prompts,
)
from tests.methods.eagle3_heads import (
    Eagle3Tensors,
    aux_states,
    convert_with,
    formula_of,
    knowing_head,
    random_head,
    save_head,
)
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import CheckpointError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

TREE = {"top_k": 3, "nodes": 9}
CHAIN: dict[str, int] = {}


def make_engine(target: Path, options: dict[str, Any], draft_len: int = 4, **settings: Any) -> Engine:
    chosen = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | settings
    return Engine(target, None, EngineSettings("eagle3", draft_len, options=options, **chosen))


def make_target(root: Path, shape: dict[str, Any]) -> Path:
    return make_model(root / "hf", **shape)


def last_of(shape: dict[str, Any]) -> tuple[int, int]:
    """Return layers to read: the first and the last."""
    return 0, shape.get("num_hidden_layers", SHAPE["num_hidden_layers"]) - 1


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES.keys())
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A target of some shape with a random head, and transformers' model of it."""
    root = tmp_path_factory.mktemp("converted")
    source = make_target(root, request.param)
    head_root = save_head(random_head(last_of(request.param)), root / "head")
    return convert_with(source, head_root, root / "target"), reference_model(source)


@pytest.mark.parametrize("options", [CHAIN, TREE], ids=["chain", "tree"])
def test_greedy_text_with_random_head_equals_transformers(options: dict[str, int], converted: tuple[Path, Any]) -> None:
    """The head is random and therefore hardly ever right."""
    target, model = converted
    engine = make_engine(target, options)
    stats = assert_greedy_text(engine, model, 12)
    engine.close()
    assert stats[0].drafted > 30


class Knowing:
    """A target, and a head that was fitted to its own texts."""

    def __init__(self, root: Path) -> None:
        self.source = make_target(root, {"family": "llama"})
        self.model = reference_model(self.source)
        texts = [[*prompt, *greedy(self.model, list(prompt), 40)] for prompt in random_prompts(8)]
        self.head = knowing_head(random_head(drafted=48), self.model, texts)
        self.target = convert_with(self.source, save_head(self.head, root / "head"), root / "target")


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Knowing:
    return Knowing(tmp_path_factory.mktemp("knowing"))


@pytest.mark.parametrize("options", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("rows", [3, 8])
def test_greedy_text_with_accepted_drafts_equals_transformers(
    knowing: Knowing, options: dict[str, int], rows: int
) -> None:
    """With fewer rows than requests, some requests enter late and others move to another row."""
    engine = make_engine(knowing.target, options, max_batch_size=rows, max_num_tokens=24)
    stats = assert_greedy_text(engine, knowing.model)
    engine.close()
    assert sum(each.accepted for each in stats) > 60
    assert max(each.mean_accepted_len for each in stats) > 2


def test_head_split_across_ranks_gives_the_same_results(knowing: Knowing, tmp_path: Path) -> None:
    head_root = save_head(knowing.head, tmp_path / "head")
    target = convert_with(knowing.source, head_root, tmp_path / "two", mapping=ParallelMapping(2))
    requests = [EngineRequest(prompt, 24) for prompt in random_prompts(3)]
    found = []
    for root in (knowing.target, target):
        engine = make_engine(root, CHAIN)
        found.append([(result.ids, result.stats) for result in engine.generate(requests)])
        engine.close()
    assert found[0] == found[1]


def paths_of(parents: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
    """Return the tokens from the root down to each node's parent."""
    paths: dict[int, list[int]] = {0: []}
    for node, parent in enumerate(parents[1:], 1):
        paths[node] = [*paths[parent], tokens[node - 1]]
    return [paths[node][:-1] for node in range(1, len(parents))]


@torch.inference_mode()
def assert_drafts_by_the_formula(head: Eagle3Tensors, model: Any, observed: Observed, ranks: int) -> None:
    """Assert that every drafted token is among the formula's `ranks` best after its path."""
    formula, ids = formula_of(head, model), head.target_ids.tolist()
    for texts, draft in observed.drafts:
        for row, (text, tokens) in enumerate(zip(texts, draft.tokens.tolist(), strict=True)):
            states = aux_states(model, text, head.aux)
            width = draft.tokens.shape[1]
            parents = range(-1, width) if draft.tree is None else draft.tree.parents[row].tolist()
            for token, path in zip(tokens, paths_of(list(parents), tokens), strict=True):
                logits = formula.draft(text, states, path)
                least = float(logits.topk(ranks).values[-1])
                assert float(logits[ids.index(token)]) > least - 1e-3


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases and normed heads": {"bias": True, "qk_norm": True},
    "whole vocabulary, own embedding": {"drafted": SHAPE["vocab_size"], "own_embedding": True},
    "one norm before fc, residual after the norm": {"norm_before_fc": True, "norm_before_residual": True},
    "norms before fc, normed output": {"fc_norm": True, "norm_output": True},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_draft_chain_equals_the_papers_formula(kind: dict[str, Any], tmp_path: Path) -> None:
    source, head = make_target(tmp_path, {"family": "llama"}), random_head(scale=0.15, **kind)
    engine = make_engine(convert_with(source, save_head(head, tmp_path / "head"), tmp_path / "out"), CHAIN)
    observed = Observed(engine)
    engine.generate([EngineRequest(prompt, 8) for prompt in random_prompts(3)])
    engine.close()
    assert sum(draft.tokens.numel() for _, draft in observed.drafts) >= 3 * 7 * 2
    assert_drafts_by_the_formula(head, reference_model(source), observed, ranks=1)


def test_draft_tree_equals_the_papers_formula(knowing: Knowing) -> None:
    engine = make_engine(knowing.target, TREE, draft_len=3)
    observed = Observed(engine)
    results = engine.generate([EngineRequest(prompt, 10) for prompt in random_prompts(3)])
    engine.close()
    assert any(result.stats.accepted for result in results)
    assert {draft.tokens.shape[1] for _, draft in observed.drafts} == {9}
    assert_drafts_by_the_formula(knowing.head, knowing.model, observed, ranks=3)


def test_head_without_embedding_and_lm_head_uses_the_targets(tmp_path: Path) -> None:
    """The head has neither embedding nor LM head; both are the target's, where they are tied."""
    source = make_target(tmp_path, SHAPES["tied"])
    head = random_head(drafted=SHAPE["vocab_size"]).changed(lm_head__weight=None)
    engine = make_engine(convert_with(source, save_head(head, tmp_path / "head"), tmp_path / "out"), CHAIN)
    observed = Observed(engine)
    engine.generate([EngineRequest(prompt, 8) for prompt in random_prompts(2)])
    engine.close()
    assert_drafts_by_the_formula(head, reference_model(source), observed, ranks=1)


def test_checkpoint_without_head_is_rejected_with_a_hint(tmp_path: Path) -> None:
    target = convert(make_target(tmp_path, {"family": "llama"}), tmp_path / "out")
    with pytest.raises(CheckpointError) as caught:
        make_engine(target, CHAIN)
    hint = "convert it with method: eagle3 and the head as speculation.draft"
    assert str(caught.value) == f"{target}: does not contain an EAGLE-3 head\nhint: {hint}"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of a vocabulary of 3."""
    return make_target(tmp_path_factory.mktemp("distribution"), DISTRIBUTION_SHAPE)


class TestDistribution:
    @staticmethod
    def engine(source: Path, root: Path, drafted: int, options: dict[str, int], draft_len: int) -> Engine:
        shape = {key: value for key, value in DISTRIBUTION_SHAPE.items() if key not in ("family", "scale")}
        head_root = save_head(random_head(drafted=drafted, target=shape, seed=8), root / "head")
        return make_engine(convert_with(source, head_root, root / "target"), options, draft_len, max_batch_size=1)

    @pytest.mark.parametrize(
        ("drafted", "options", "draft_len"),
        [(3, CHAIN, 2), (2, CHAIN, 2), (3, {"top_k": 2, "nodes": 4}, 2), (2, {"top_k": 2, "nodes": 3}, 2)],
        ids=["chain", "chain of 2 tokens of 3", "tree", "tree of 2 tokens of 3"],
    )
    def test_sampled_text_has_the_targets_distribution(
        self, drafted: int, options: dict[str, int], draft_len: int, source: Path, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        engine = self.engine(source, tmp_path, drafted, options, draft_len)
        assert_targets_distribution(engine, reference_model(source), monkeypatch, SamplingOptions(1.0))
        engine.close()

    @pytest.mark.parametrize("name", ["verify_chain", "verify_tree"])
    def test_acceptance_rule_without_residual_is_detected(
        self, name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = CHAIN if name == "verify_chain" else {"top_k": 2, "nodes": 4}
        engine = self.engine(source, tmp_path, 3, options, 2)
        assert_wrong_rule_is_seen(engine, reference_model(source), monkeypatch)
        engine.close()

    def test_chain_probabilities_equal_the_formula_over_the_targets_vocabulary(
        self, source: Path, tmp_path: Path
    ) -> None:
        """The distribution covers the target's vocabulary, with 0 for ids that are never drafted."""
        shape = {key: value for key, value in DISTRIBUTION_SHAPE.items() if key not in ("family", "scale")}
        head = random_head(drafted=2, target=shape, seed=8)
        engine = self.engine(source, tmp_path, 2, CHAIN, 2)
        observed, model = Observed(engine), reference_model(source)
        engine.generate([EngineRequest((1, 2, 0), 6, SamplingOptions(0.7, seed=number)) for number in range(4)])
        engine.close()
        formula, ids = formula_of(head, model), head.target_ids
        for texts, draft in observed.drafts:
            assert draft.probs is not None
            for text, tokens, probs in zip(texts, draft.tokens.tolist(), draft.probs, strict=True):
                expected = torch.zeros_like(probs)
                for step, row in enumerate(expected):
                    logits = self._logits(formula, model, head, text, tokens[:step])
                    row[ids] = torch.softmax(logits / 0.7, -1)
                np.testing.assert_allclose(probs, expected, atol=1e-5)

    @staticmethod
    @torch.inference_mode()
    def _logits(formula: Any, model: Any, head: Eagle3Tensors, text: list[int], path: list[int]) -> Tensor:
        logits: Tensor = formula.draft(text, aux_states(model, text, head.aux), path)
        return logits
