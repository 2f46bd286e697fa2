# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from trtspec.kernels import reference
from trtspec.kernels.sampling import SamplingParams, pick

HOW = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8), (0.5, 7, 0.6), (0.0, 0, 1.0), (1.0, 3, 0.05)]


def params_of(temperature: float, top_k: int, top_p: float) -> SamplingParams:
    return SamplingParams(
        torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]), bool(top_k) or top_p < 1.0
    )


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), HOW)
def test_probabilities_are_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    logits = torch.randn(1, 40, dtype=torch.float64) * 3
    ours = params_of(temperature, top_k, top_p).probs(logits)[0]
    numpy = reference.probs_of(logits[0].numpy(), temperature, top_k, top_p)
    expected = logits.clone()
    if temperature:
        expected = TemperatureLogitsWarper(temperature)(None, expected)
        expected = TopKLogitsWarper(top_k)(None, expected) if top_k else expected
        expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
        probs = torch.softmax(expected, -1)[0]
    else:
        probs = torch.nn.functional.one_hot(logits[0].argmax(), 40).double()
    np.testing.assert_allclose(numpy, probs, atol=1e-12)
    np.testing.assert_allclose(ours, probs, atol=1e-6)


def test_without_greedy_rows_the_one_hot_is_left_out_and_nothing_changes() -> None:
    torch.manual_seed(0)
    logits, how = torch.randn(3, 2, 40), (torch.tensor([0.7, 1.0, 1.3]), torch.tensor([0, 5, 0]), torch.ones(3))
    assert torch.equal(
        SamplingParams(*how, truncates=True, mixed=False).probs(logits),
        SamplingParams(*how, truncates=True).probs(logits),
    )


def test_rows_that_are_not_cut_are_not_sorted_and_the_others_are_what_they_are_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(len(HOW), 2, 40) * 3
    how = [torch.tensor(values) for values in zip(*HOW, strict=True)]
    cut = torch.tensor([row for row, (heat, top_k, top_p) in enumerate(HOW) if heat and (top_k or top_p < 1)])
    some = SamplingParams(*how, truncates=True, truncated=cut).probs(logits)
    torch.testing.assert_close(some, SamplingParams(*how, truncates=True).probs(logits), atol=1e-6, rtol=0)
    for row, alone in enumerate(HOW):
        assert torch.equal(some[row : row + 1], params_of(*alone).probs(logits[row : row + 1]))


def test_the_last_token_stands_for_no_weight_at_all() -> None:
    assert pick(torch.zeros(2, 5), torch.tensor([0.0, 0.9])).tolist() == [4, 4]


def test_the_last_positive_token_is_taken_at_the_end_of_the_mass() -> None:
    weights = np.array([0.1, 0.2, 0.0])
    assert reference.pick(weights, 1.0) == 1
    assert int(pick(torch.from_numpy(weights)[None], torch.tensor([1.0]))) == 1


def test_tokens_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(20) * 0.2, 200) * rng.integers(0, 2, (200, 20))
    weights[:, 7] += 1e-3
    uniforms = np.append(rng.random(198), [0.0, np.nextafter(1.0, 0.0)])
    expected = [reference.pick(row, uniform) for row, uniform in zip(weights, uniforms, strict=True)]
    assert pick(torch.from_numpy(weights), torch.from_numpy(uniforms)).tolist() == expected
