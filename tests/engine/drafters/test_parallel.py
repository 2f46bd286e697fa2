# SPDX-License-Identifier: Apache-2.0
"""Drafters of a chain in one pass (pard, dflash, dspark, p_eagle): lossless, and drafting by their formulas."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
    choices_along,
    random_prompts,
)
from tests.methods.parallel_nets import FORMULAS, Net, knowing_net, random_block_net, random_p_eagle
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import CheckpointError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

MASK = 2
METHODS = ("pard", "dflash", "dspark", "p_eagle")
DRAFT_LEN = 4
# The draft's logits [len(drafted), ids] after a text at each drafted token, and the target's ids.
Oracle = Callable[[Sequence[int], Sequence[int]], Tensor]


def make_net(method: str, **how: Any) -> Net:
    return random_p_eagle(**how) if method == "p_eagle" else random_block_net(method, **how)


def load(method: str, target: Path, draft: Path | None, draft_len: int = DRAFT_LEN, **settings: Any) -> Engine:
    chosen = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | settings
    return Engine(target, draft, EngineSettings(method, draft_len, **chosen))


def make_pard(root: Path, seed: int = 1, **shape: Any) -> Path:
    """Return the source of a model with a mask token."""
    source = make_model(root, **{"family": "llama", "num_hidden_layers": 1, **shape}, seed=seed)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "pard_token": MASK}))
    return source


class Pair:
    """A target, its draft, and the oracle of the draft."""

    def __init__(self, root: Path, method: str, shape: dict[str, Any], draft: Net | Path, **how: Any) -> None:
        self.method = method
        self.source = source = root / "hf" if (root / "hf").exists() else make_model(root / "hf", **shape)
        self.model = reference_model(source)
        self.draft = None
        if isinstance(draft, Net):
            self.formula = FORMULAS[method](draft, self.model)
            self.ids, self.target = self.formula.ids, draft.convert(source, root, **how)
        else:
            self.drafting, self.target = reference_model(draft), convert(source, root / "target")
            self.ids, self.draft = torch.arange(self.drafting.config.vocab_size), convert(draft, root / "draft")

    def engine(self, draft_len: int = DRAFT_LEN, **settings: Any) -> Engine:
        return load(self.method, self.target, self.draft, draft_len, **settings)

    @torch.inference_mode()
    def logits(self, text: Sequence[int], drafted: Sequence[int], most: int = DRAFT_LEN) -> Tensor:
        """Return the oracle's logits [len(drafted), ids] at each of the drafted tokens."""
        if self.draft is None:
            return self.formula.logits(text, drafted, most)
        masks = [MASK] * (len(drafted) - 1)
        logits: Tensor = self.drafting(torch.tensor([[*text, *masks]])).logits[0, len(text) - 1 :].double()
        return logits

    @torch.inference_mode()
    def sureness(self, text: Sequence[int], drafted: Sequence[int], most: int = DRAFT_LEN) -> Tensor:
        """Return the draft's confidence at each of the drafted tokens."""
        if self.draft is None:
            return self.formula.sureness(text, drafted, most)
        return self.logits(text, drafted).softmax(-1).amax(-1)


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_greedy_text_with_random_draft_equals_transformers(method: str, shape: dict[str, Any], tmp_path: Path) -> None:
    """The draft is random and therefore hardly ever right."""
    last = shape.get("num_hidden_layers", SHAPE["num_hidden_layers"]) - 1
    draft = make_pard(tmp_path / "pard") if method == "pard" else make_net(method, reads=(0, last))
    pair = Pair(tmp_path, method, shape, draft)
    engine = pair.engine()
    stats = assert_greedy_text(engine, pair.model, 12)
    engine.close()
    assert stats[0].drafted > 30


@pytest.fixture(scope="module")
def knowing(method: str, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target, and a draft that was fitted to some of its texts."""
    root = tmp_path_factory.mktemp("knowing")
    source = make_model(root / "hf", "llama")
    if method == "pard":  # the target itself: its first token is the target's next one
        return Pair(root, method, {}, make_pard(root / "pard", seed=0, num_hidden_layers=2))
    model = reference_model(source)
    texts = [[*prompt, *greedy(model, list(prompt), 40)] for prompt in random_prompts(8)]
    return Pair(
        root,
        method,
        {},
        knowing_net(make_net(method, own=True) if method != "p_eagle" else make_net(method), model, texts),
    )


@pytest.mark.parametrize("rows", [3, 8])
def test_greedy_text_with_accepted_drafts_equals_transformers(knowing: Pair, rows: int) -> None:
    """With fewer rows than requests, some requests enter late and others move to another row."""
    engine = knowing.engine(max_batch_size=rows, max_num_tokens=24)
    stats = assert_greedy_text(engine, knowing.model)
    engine.close()
    assert sum(each.accepted for each in stats) > 60


def test_schedule_that_pauses_drafting_keeps_the_text(knowing: Pair) -> None:
    """Drafting pauses while many requests run; their tokens are processed later."""
    engine = knowing.engine(schedule=((2, DRAFT_LEN), (3, 1)))
    requests = [EngineRequest(prompt, 20 + 3 * number) for number, prompt in enumerate(random_prompts(8))]
    results = engine.generate(requests)
    engine.close()
    for request, result in zip(requests, results, strict=True):
        assert list(result.ids) == choices_along(knowing.model, request.prompt_ids, result.ids)
    assert sum(result.stats.accepted for result in results) > 0
    assert results[0].stats.draft_steps < results[0].stats.steps


@torch.inference_mode()
def assert_drafts_by_the_formula(pair: Pair, observed: Observed, temperature: float, draft_len: int = DRAFT_LEN) -> int:
    """Compare each token's distribution with the oracle; return the number of tokens."""
    seen = 0
    for texts, draft in observed.drafts:
        assert draft.probs is not None
        for text, tokens, probs in zip(texts, draft.tokens.tolist(), draft.probs, strict=True):
            expected = torch.zeros_like(probs)
            expected[:, pair.ids] = (pair.logits(text, tokens, draft_len) / temperature).softmax(-1).float()
            np.testing.assert_allclose(probs, expected, atol=1e-5)
            seen += len(tokens)
    return seen


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "pard": ("pard", {}),
    "dflash": ("dflash", {}),
    "dflash, some tokens and biases": ("dflash", {"drafted": 40, "bias": True}),
    "dflash, causal, drafting at the anchor": ("dflash", {"causal": True, "sample_from_anchor": True, "own": True}),
    "dspark": ("dspark", {}),
    "dspark, some tokens": ("dspark", {"drafted": 40}),
    "dspark, not drafting at the anchor": ("dspark", {"sample_from_anchor": False}),
    "p_eagle": ("p_eagle", {}),
    "p_eagle, one layer, normed heads": ("p_eagle", {"layers": 1, "qk_norm": True, "fc_norm": True}),
    "p_eagle, biases, residual after the norm": (
        "p_eagle", {"bias": True, "norm_before_residual": True, "norm_output": True, "layers": 2},
    ),
}  # fmt: skip


def make_kind(kind: str, root: Path) -> Pair:
    method, how = KINDS[kind]
    return Pair(
        root,
        method,
        {"family": "llama"},
        make_net(method, scale=0.15, **how) if method != "pard" else make_pard(root / "pard"),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_chain_follows_the_formula(kind: str, tmp_path: Path) -> None:
    pair = make_kind(kind, tmp_path)
    engine = pair.engine()
    observed = Observed(engine)
    engine.generate([EngineRequest(prompt, 9, SamplingOptions(0.7, seed=3)) for prompt in random_prompts(3)])
    engine.close()
    assert assert_drafts_by_the_formula(pair, observed, 0.7) >= 3 * 2 * DRAFT_LEN


@pytest.mark.parametrize("kind", KINDS)
def test_draft_ends_where_its_confidence_is_below_the_threshold(kind: str, tmp_path: Path) -> None:
    """Chains of different rows end at different positions; they are prefixes of the full-length drafts."""
    pair = make_kind(kind, tmp_path)
    floor = 0.2 if pair.method == "dspark" else 0.004
    whole, short = pair.engine(), pair.engine(confidence=floor)
    notes = [Observed(engine) for engine in (whole, short)]
    for engine in (whole, short):
        engine.generate([EngineRequest(prompt, 9) for prompt in random_prompts(8)])
        engine.close()
    found = set()
    for (texts, draft), depth in zip(notes[1].drafts, notes[1].depths, strict=True):
        assert draft.lens
        for text, tokens, length in zip(texts, draft.tokens.tolist(), draft.lens, strict=True):
            full = [*tokens[:length], *[0] * (DRAFT_LEN - length)]
            products = pair.sureness(text, full)[: length + 1].cumprod(0)
            assert (products[:length] >= floor - 1e-4).all()
            assert length == depth or products[length] < floor + 1e-4
            found.add(length)
    assert len(found) > 1
    lengths = [sum(sum(draft.lens or []) for _, draft in note.drafts) for note in notes]
    assert lengths[1] < lengths[0]


def test_net_split_across_ranks_drafts_the_same(method: str, tmp_path: Path) -> None:
    if method == "pard":
        pytest.skip("a draft model is divided as every model is")
    net = make_net(method, scale=0.15)
    pairs = [Pair(tmp_path / "one", method, {"family": "llama"}, net)]
    pairs.append(Pair(tmp_path / "two", method, {"family": "llama"}, net, mapping=ParallelMapping(2)))
    found = []
    for pair in pairs:
        engine = pair.engine()
        observed = Observed(engine)
        engine.generate([EngineRequest(prompt, 6) for prompt in random_prompts(2)])
        engine.close()
        found.append([(text, draft.tokens.tolist()) for text, draft in observed.drafts])
    assert found[0] == found[1]


def test_missing_net_or_draft_is_an_error(method: str, tmp_path: Path) -> None:
    target = convert(make_model(tmp_path / "hf", "llama"), tmp_path / "out")
    with pytest.raises(CheckpointError) as caught:
        load(method, target, None)
    said = {"pard": "pard needs a draft checkpoint", "p_eagle": f"{target}: does not contain a P-EAGLE net"}
    assert str(caught.value).startswith(said.get(method, f"{target}: does not contain a {method} net"))


def test_draft_without_mask_token_is_rejected(tmp_path: Path) -> None:
    target = convert(make_model(tmp_path / "hf", "llama"), tmp_path / "out")
    with pytest.raises(CheckpointError, match="lacks 'mask_token_id'"):
        load("pard", target, target)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of a vocabulary of 3."""
    root = tmp_path_factory.mktemp("distribution")
    make_model(root / "hf", **DISTRIBUTION_SHAPE)
    return root


class TestDistribution:
    @staticmethod
    def pair(method: str, source: Path, root: Path, **how: Any) -> Pair:
        shape = {key: value for key, value in DISTRIBUTION_SHAPE.items() if key not in ("family", "scale")}
        root.mkdir(exist_ok=True)
        (root / "hf").symlink_to(source / "hf")
        if method == "pard":
            return Pair(root, method, {}, make_pard(root / "pard", **{**DISTRIBUTION_SHAPE, "num_hidden_layers": 1}))
        if method == "p_eagle":
            how = {"drafted": 3, "layers": 2, **how}
        return Pair(root, method, {}, make_net(method, target=shape, seed=8, **how))

    @pytest.mark.parametrize("how", [{}, {"confidence": 0.25}, {"confidence": 0.25, "verify": "block"}], ids=str)
    def test_sampled_text_has_the_targets_distribution(
        self, method: str, how: dict[str, Any], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = self.pair(method, source, tmp_path)
        engine = pair.engine(2, max_batch_size=1, **how)
        assert_targets_distribution(engine, pair.model, monkeypatch, SamplingOptions(1.0))
        engine.close()

    @pytest.mark.parametrize("kind", ["dflash", "dspark", "p_eagle"])
    def test_draft_of_a_vocabulary_subset_has_the_targets_distribution(
        self, kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = self.pair(kind, source, tmp_path, drafted=2)
        engine = pair.engine(2, max_batch_size=1)
        assert_targets_distribution(engine, pair.model, monkeypatch, SamplingOptions(1.0))
        engine.close()

    def test_acceptance_rule_without_residual_is_detected(
        self, method: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = self.pair(method, source, tmp_path)
        engine = pair.engine(2, max_batch_size=1)
        assert_wrong_rule_is_seen(engine, pair.model, monkeypatch)
        engine.close()
