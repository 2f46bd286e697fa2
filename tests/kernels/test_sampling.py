# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels import reference
from trtspec.kernels import sampling
from trtspec.kernels.sampling import SamplingParams, pick

HOW = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8), (0.5, 7, 0.6), (0.0, 0, 1.0), (1.0, 3, 0.05)]


def params_of(temperature: float, top_k: int, top_p: float) -> SamplingParams:
    return SamplingParams(
        torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]), bool(top_k) or top_p < 1.0
    )


@pytest.mark.parametrize("vocab", [40, 500])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [*HOW, (1.0, 200, 0.9), (2.0, 64, 1.0), (3.0, 0, 0.95)])
def test_probabilities_equal_transformers(temperature: float, top_k: int, top_p: float, vocab: int) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    logits = torch.randn(1, vocab, dtype=torch.float64) * 3
    ours = params_of(temperature, top_k, top_p).probs(logits)[0]
    numpy = reference.sampling_probs(logits[0].numpy(), temperature, top_k, top_p)
    expected = logits.clone()
    if temperature:
        expected = TemperatureLogitsWarper(temperature)(None, expected)
        expected = TopKLogitsWarper(min(top_k, vocab))(None, expected) if top_k else expected
        expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
        probs = torch.softmax(expected, -1)[0]
    else:
        probs = torch.nn.functional.one_hot(logits[0].argmax(), vocab).double()
    np.testing.assert_allclose(numpy, probs, atol=1e-12)
    np.testing.assert_allclose(ours, probs, atol=1e-6)


def test_probabilities_without_greedy_rows_are_the_same_with_mixed_off() -> None:
    torch.manual_seed(0)
    logits, how = torch.randn(3, 2, 40), (torch.tensor([0.7, 1.0, 1.3]), torch.tensor([0, 5, 0]), torch.ones(3))
    assert torch.equal(
        SamplingParams(*how, truncates=True, mixed=False).probs(logits),
        SamplingParams(*how, truncates=True).probs(logits),
    )


def test_truncating_only_the_rows_that_need_it_equals_each_row_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(len(HOW), 2, 40) * 3
    how = [torch.tensor(values) for values in zip(*HOW, strict=True)]
    cut = torch.tensor([row for row, (heat, top_k, top_p) in enumerate(HOW) if heat and (top_k or top_p < 1)])
    some = SamplingParams(*how, truncates=True, truncated=cut).probs(logits)
    torch.testing.assert_close(some, SamplingParams(*how, truncates=True).probs(logits), atol=1e-6, rtol=0)
    for row, alone in enumerate(HOW):
        assert torch.equal(some[row : row + 1], params_of(*alone).probs(logits[row : row + 1]))


class TestTheFewMostProbable:
    """Rows are truncated by their FEW largest values; undecided rows are sorted, with the same bits."""

    KINDS = ("peaked", "flat", "equal", "coarse")

    def probs(self, kind: str) -> torch.Tensor:
        torch.manual_seed(0)
        logits = {"peaked": torch.randn(8, 3, 900) * 6, "flat": torch.randn(8, 3, 900) * 0.1}
        found = logits | {"equal": torch.zeros(8, 3, 900), "coarse": torch.randn(8, 3, 900).mul(2).round()}
        return torch.softmax(found[kind], -1)

    @pytest.mark.parametrize("top_k", [0, 1, sampling.FEW - 1, sampling.FEW, sampling.FEW + 1, 500, 5000])
    @pytest.mark.parametrize("kind", KINDS)
    def test_truncation_equals_truncation_by_full_sorting(self, kind: str, top_k: int) -> None:
        probs, top_p = self.probs(kind), torch.tensor([-1.0, 0.0, 0.2, 0.5, 0.9, 0.999, 1.0, torch.nan])
        cuts = SamplingParams(torch.ones(8), torch.full((8,), top_k), top_p, truncates=True)._cuts((8, 1, 1))
        found, expected = sampling._truncate(probs, *cuts), sampling._truncate_sorted(probs, *cuts)
        assert torch.equal(found, expected)
        assert torch.equal((found > 0).sum(-1)[:2], torch.ones(2, 3).long()), "none is left of a top_p of 0"
        left = (probs > 0).sum(-1)[6:].clamp_max(top_k or 900)
        assert torch.equal((found > 0).sum(-1)[6:], left), "some of a top_p of 1 are left out"

    def test_row_truncation_is_the_same_in_a_batch_and_alone(self) -> None:
        probs = torch.cat([self.probs(kind) for kind in self.KINDS])
        top_k, top_p = torch.tensor([0, 7, 80, 0]).repeat(8), torch.tensor([0.3, 0.9, 0.99, 1.0]).repeat(8)
        how = SamplingParams(torch.ones(32), top_k, top_p, truncates=True)
        together = sampling._truncate(probs, *how._cuts((32, 1, 1)))
        for row in range(32):
            some = SamplingParams(torch.ones(1), top_k[row : row + 1], top_p[row : row + 1], truncates=True)
            assert torch.equal(sampling._truncate(probs[row : row + 1], *some._cuts((1, 1, 1)))[0], together[row])

    def test_lower_ids_come_first_among_equal_probabilities(self) -> None:
        kept = params_of(1.0, 0, 0.25).probs(torch.zeros(1, 1000))[0]
        assert torch.equal(kept.nonzero().flatten(), torch.arange(250))
        kept = params_of(1.0, 70, 0.5).probs(torch.zeros(1, 1000))[0]
        assert torch.equal(kept.nonzero().flatten(), torch.arange(35))


def test_pick_without_any_weight_returns_the_last_token() -> None:
    assert pick(torch.zeros(2, 5), torch.tensor([0.0, 0.9])).tolist() == [4, 4]


def test_pick_at_the_end_of_the_mass_returns_the_last_positive_token() -> None:
    weights = np.array([0.1, 0.2, 0.0])
    assert reference.pick(weights, 1.0) == 1
    assert int(pick(torch.from_numpy(weights)[None], torch.tensor([1.0]))) == 1


def test_picked_tokens_equal_the_reference() -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(20) * 0.2, 200) * rng.integers(0, 2, (200, 20))
    weights[:, 7] += 1e-3
    uniforms = np.append(rng.random(198), [0.0, np.nextafter(1.0, 0.0)])
    expected = [reference.pick(row, uniform) for row, uniform in zip(weights, uniforms, strict=True)]
    assert pick(torch.from_numpy(weights), torch.from_numpy(uniforms)).tolist() == expected
