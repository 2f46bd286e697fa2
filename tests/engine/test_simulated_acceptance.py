# SPDX-License-Identifier: Apache-2.0
"""Forced acceptance: its specification, the verifier, and the accepted length that engines measure with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests._support.tiny import convert, make_llama
from tests.engine.lossless import random_prompts
from tests.kernels import test_chain, test_tree
from trtspec.core.errors import TrtspecError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import Constraint, EngineRequest, SamplingOptions, Stats
from trtspec.engine.settings import EngineSettings
from trtspec.engine.simulated_acceptance import mark_method, mean_accepted_len, parse_simulated_acceptance
from trtspec.kernels.simulated import SimulatedVerifier
from trtspec.kernels.verifier import DraftVerifier

ERRORS = {
    "none": "'none' is not a simulated acceptance",
    "": "'' is not a simulated acceptance",
    "5.1": "a step of 4 draft tokens yields at most 5 tokens",
    "inf": "a step of 4 draft tokens yields at most 5 tokens",
    "nan": "'nan' has 1 acceptance rates, but 4 tokens are drafted",
    "0.5": "'0.5' has 1 acceptance rates, but 4 tokens are drafted",
    "0.9,0.8,0.7": "'0.9,0.8,0.7' has 3 acceptance rates, but 4 tokens are drafted",
    "0.5,0.6,0.1,0.1": "'0.5,0.6,0.1,0.1': rates must be between 0 and 1, and none above the one before",
    "1.1,0.6,0.1,0.1": "'1.1,0.6,0.1,0.1': rates must be between 0 and 1, and none above the one before",
    "0.9,nan,0.1,0.1": "'0.9,nan,0.1,0.1': rates must be between 0 and 1, and none above the one before",
    "0.9,0.6,0.1,-0.1": "'0.9,0.6,0.1,-0.1': rates must be between 0 and 1, and none above the one before",
}


@pytest.mark.parametrize(("text", "message"), ERRORS.items())
def test_parse_rejects_an_impossible_acceptance(text: str, message: str) -> None:
    with pytest.raises(TrtspecError) as refused:
        parse_simulated_acceptance(text, 4)
    assert refused.value.message == message
    assert "such as 2.7" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("2.7", (1.0, 0.7, 0.0, 0.0)),
        ("1", (0.0, 0.0, 0.0, 0.0)),
        ("5", (1.0, 1.0, 1.0, 1.0)),
        ("3.0", (1.0, 1.0, 0.0, 0.0)),
        ("0.9,0.6,0.6,0.1", (0.9, 0.6, 0.6, 0.1)),
    ],
)
def test_parse_returns_a_rate_of_every_position(text: str, rates: Sequence[float]) -> None:
    assert parse_simulated_acceptance(text, 4) == rates
    assert mean_accepted_len(rates) == pytest.approx(1 + sum(rates))


def test_length_has_the_rates_of_vllm() -> None:
    """As `_acceptance_length_to_rates` of vllm-project/vllm:vllm/config/speculative.py@v0.32.0 for 2.6 of 3 tokens."""
    assert parse_simulated_acceptance("2.6", 3) == (1.0, 0.6, 0.0)


def test_settings_without_simulation_have_the_same_text_as_before() -> None:
    assert "simulated" not in EngineSettings("ngram", 4).as_json()
    settings = EngineSettings("ngram", 4, simulated_acceptance=(0.5, 0.25))
    assert tuple(EngineSettings.from_json(settings.as_json()).simulated_acceptance) == (0.5, 0.25)
    assert (mark_method("ngram", ()), mark_method("ngram", [0.5])) == ("ngram", "ngram (simulated)")


def is_within(accepted: int, steps: int, rate: float) -> bool:
    """Return whether a count of steps is within five standard deviations of a binomial distribution."""
    return abs(accepted - steps * rate) <= 5 * math.sqrt(steps * rate * (1 - rate)) + 1e-9


@pytest.mark.parametrize("kind", ["chain", "block"])
@pytest.mark.parametrize("sampled", [True, False])
def test_chains_are_accepted_at_the_forced_rates(kind: str, sampled: bool) -> None:
    batch = test_chain.Batch(3, torch.float32, sampled)
    rates = (0.9, 0.5, 0.2, 0.2)
    verifier = SimulatedVerifier(DraftVerifier(), rates)
    verify = getattr(verifier, kind)
    sampling = (batch.params(), batch.draft_probs, batch.uniforms) if sampled else ()
    reached, calls = np.zeros((len(batch.lens), 4), int), 100
    for _ in range(calls):
        for row, result in enumerate(verify(batch.logits, batch.tokens, batch.lens, *sampling)):
            assert result.path == [*range(1, len(result.path) + 1)]
            assert len(result.path) <= batch.lens[row]
            reached[row, : len(result.path)] += 1
            if not sampled:  # the token after the draft is the target's choice there
                assert result.token == batch.logits[row, len(result.path)].argmax()
    for row, drafted in enumerate(batch.lens):
        for position, rate in enumerate(rates[:drafted]):
            assert is_within(int(reached[row, position]), calls, rate)


@pytest.mark.parametrize("sampled", [True, False])
def test_trees_are_accepted_along_one_path(sampled: bool) -> None:
    batch = test_tree.Batch(2, torch.float32, sampled)
    verifier = SimulatedVerifier(DraftVerifier(), (1.0, 0.5, 0.25, 0.25, 0.25))
    sampling = (batch.params(slice(None)), batch.draft_probs, batch.uniforms) if sampled else ()
    tree = batch.tree.within(batch.limits)
    rows = len(batch.tokens)
    lengths = set()
    for _ in range(20):
        for row, result in enumerate(verifier.tree(batch.logits, batch.tokens, batch.tree, batch.limits, *sampling)):
            parents = tree.parents[row if len(tree.parents) == rows else 0]
            assert [parents[node] for node in result.path] == [0, *result.path][: len(result.path)]
            assert len(result.path) <= batch.limits[row]
            lengths.add(len(result.path))
            if not sampled:
                assert result.token == batch.logits[row, [0, *result.path][-1]].argmax()
    assert len(lengths) > 1


def test_rows_without_a_draft_keep_the_target_text() -> None:
    batch = test_chain.Batch(1, torch.float32, False)
    nothing = [0] * len(batch.lens)
    verifier = SimulatedVerifier(DraftVerifier(), (1.0, 1.0, 1.0, 1.0))
    assert verifier.chain(batch.logits, batch.tokens, nothing) == DraftVerifier.chain(
        batch.logits, batch.tokens, nothing
    )


def count(engine: Engine, draft_len: int | None, sampling: SamplingOptions) -> tuple[Stats, list[tuple[int, ...]]]:
    requests = [EngineRequest(prompt, 96, sampling, draft_len=draft_len) for prompt in random_prompts(4)]
    results = engine.generate(requests)
    total = Stats()
    for result in results:
        total += result.stats
    return total, [result.ids for result in results]


@pytest.mark.integration
@pytest.mark.parametrize("verify", ["standard", "block"])
def test_engine_measures_the_requested_accepted_length(tmp_path: Path, verify: str) -> None:
    """The draft is another random model, of which hardly a token would be accepted."""
    target = convert(make_llama(tmp_path / "hf"), tmp_path / "target")
    draft = convert(make_llama(tmp_path / "other", seed=7), tmp_path / "draft")
    rates = (0.9, 0.6, 0.3)
    common = {"max_seq_len": 256, "max_batch_size": 4, "device": "cpu", "verify": verify}
    plain = Engine(target, draft, EngineSettings("draft_target", 3, **common))
    engine = Engine(target, draft, EngineSettings("draft_target", 3, simulated_acceptance=rates, **common))
    try:
        for sampling in (SamplingOptions(), SamplingOptions(temperature=1.0)):
            stats, texts = count(engine, None, sampling)
            full = stats.steps - 2 * 4  # the last steps of the four texts may draft less
            for rate, accepted in zip(rates, stats.accepted_by_position, strict=True):
                low, high = full * rate, stats.steps * rate
                spread = 5 * math.sqrt(stats.steps * rate * (1 - rate))
                assert low - spread <= accepted <= high + spread
            assert stats.mean_accepted_len == pytest.approx(mean_accepted_len(rates), abs=0.25)
            assert texts != count(plain, None, sampling)[1]
        # a request that drafts nothing gets the target's own text
        assert count(engine, 0, SamplingOptions())[1] == count(plain, None, SamplingOptions())[1]
        assert count(engine, None, SamplingOptions())[1] != count(plain, None, SamplingOptions())[1]
        with pytest.raises(TrtspecError, match="guides cannot be used with simulated acceptance"):
            engine.submit(EngineRequest((1,), 4, constraint=Constraint("json", "")), lambda update: None)
    finally:
        plain.close()
        engine.close()
