# SPDX-License-Identifier: Apache-2.0
"""End and verification of chains with the methods that draft token by token: the text stays the target's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests._support.tiny import convert, make_model, reference_model
from tests.engine.lossless import DISTRIBUTION_SHAPE, assert_targets_distribution, assert_wrong_rule_is_seen
from tests.methods.eagle3_heads import convert_with, random_head, save_head
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

METHODS: dict[str, dict[str, Any]] = {
    "draft_target": {},
    "draft_target, its tokens alone": {"use_draft_logits": False},
    "eagle3": {},
    "swift": {"skip": {"attention": [1], "mlp": [0]}},
}
WAYS: dict[str, dict[str, Any]] = {
    "by confidence": {"confidence": 0.25},
    "as a block": {"verify": "block"},
    "both": {"confidence": 0.25, "verify": "block"},
}


class Models:
    """A target of a vocabulary of 3, alone and with a head, and a draft."""

    def __init__(self, root: Path) -> None:
        shape = {key: value for key, value in DISTRIBUTION_SHAPE.items() if key not in ("family", "scale")}
        sources = [make_model(root / f"hf{seed}", seed=seed, **DISTRIBUTION_SHAPE) for seed in (0, 1)]
        self.model = reference_model(sources[0])
        self.target, self.draft = (convert(each, root / f"c{seed}") for seed, each in enumerate(sources))
        head = save_head(random_head(drafted=3, target=shape, seed=8), root / "head")
        self.with_head = convert_with(sources[0], head, root / "with-head")

    def engine(self, name: str, draft_len: int = 2, **how: Any) -> Engine:
        method = name.partition(",")[0]
        sizes = {"max_batch_size": 1, "max_seq_len": 64, "device": "cpu"}
        settings = EngineSettings(method, draft_len, METHODS[name], **sizes, **how)
        target = self.with_head if method == "eagle3" else self.target
        return Engine(target, self.draft if method == "draft_target" else None, settings)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("way", WAYS)
def test_sampled_text_has_the_targets_distribution(
    name: str, way: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = models.engine(name, **WAYS[way])
    assert_targets_distribution(engine, models.model, monkeypatch, SamplingOptions(1.0))
    engine.close()


def test_block_rule_without_residual_is_detected(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = models.engine("draft_target", verify="block")
    assert_wrong_rule_is_seen(engine, models.model, monkeypatch)
    engine.close()


def test_verify_setting_selects_the_acceptance_rule(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    for verify, wanted in (("standard", "chain"), ("block", "block")):
        engine, asked = models.engine("draft_target", verify=verify), []
        rules = engine.speculator.verifier
        spies = {name: spy(asked, name, getattr(rules, name)) for name in ("chain", "block", "tree")}
        engine.speculator.verifier = SimpleNamespace(**spies)
        engine.generate([EngineRequest((1, 2), 6, SamplingOptions(1.0))])
        engine.close()
        assert set(asked[1:]) == {wanted}, "the first is the prompt's own, which has nothing drafted"


def spy(asked: list[str], name: str, rule: Any) -> Any:
    def noted(*arguments: Any) -> Any:
        asked.append(name)
        return rule(*arguments)

    return noted


def test_higher_confidence_threshold_shortens_drafts(models: Models) -> None:
    drafted = []
    for confidence in (0.0, 0.4, 0.9):
        engine = models.engine("draft_target", 4, confidence=confidence)
        drafted.append(sum(engine.generate([EngineRequest((1, token), 24)])[0].stats.drafted for token in range(3)))
        engine.close()
    assert drafted[0] > drafted[1] > drafted[2]
