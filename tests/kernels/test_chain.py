# SPDX-License-Identifier: Apache-2.0
"""Chains in torch have the reference's tokens for every kind of row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.kernels import reference
from tests.kernels.scenarios import CHAINS, Corners, Identity, boxes_of
from trtspec.kernels.chain import VerifyResult, verify_chain
from trtspec.kernels.sampling import SamplingParams

Rule = Callable[[np.ndarray, np.ndarray | None, list[int], list[float]], VerifyResult]


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("zeros", [False, True])
def test_torch_equals_the_reference_on_both_sides_of_every_threshold(name: str, zeros: bool) -> None:
    corners = Corners.of(boxes_of(CHAINS[name], 0, zeros))
    draft_probs = None if corners.draft_probs is None else corners.draft_probs[:, :-1]
    tokens, lens = corners.stack("tokens")[:, 1:], [2] * len(corners.cases)
    results = verify_chain(corners.stack("target_probs"), tokens, lens, Identity(), draft_probs, corners.uniforms)
    assert results == corners.results


class Batch:
    """Random chains of different lengths; every third row is greedy, others use different sampling parameters."""

    def __init__(self, seed: int, dtype: torch.dtype, sampled: bool, rows: int = 12, draft_len: int = 4) -> None:
        rng = np.random.default_rng(seed)
        vocab = int(rng.integers(3, 30))
        self.logits = torch.from_numpy(rng.normal(size=(rows, draft_len + 1, vocab)) * 2).to(dtype)
        self.lens = rng.integers(0, draft_len + 1, rows).tolist()
        self.how = [(0.0 if row % 3 == 0 else 0.5 + row / 10, row % 4, 1.0 - row % 2 * 0.2) for row in range(rows)]
        self.uniforms = torch.from_numpy(rng.random((rows, draft_len + 1)))
        near = self.logits[:, :-1].double().numpy() + rng.normal(size=(rows, draft_len, vocab))
        probs = np.array(
            [[reference.sampling_probs(x, *how) for x in row] for row, how in zip(near, self.how, strict=True)]
        )
        self.tokens = torch.from_numpy(np.array([[rng.choice(vocab, p=x) for x in row] for row in probs]))
        self.draft_probs = torch.from_numpy(probs).to(dtype) if sampled else None

    def params(self, rows: slice = slice(None)) -> SamplingParams:
        temperature, top_k, top_p = (torch.tensor(list(column)) for column in zip(*self.how[rows], strict=True))
        return SamplingParams(temperature, top_k, top_p, truncates=True)

    def results(self, rows: slice = slice(None)) -> list[VerifyResult]:
        draft_probs = None if self.draft_probs is None else self.draft_probs[rows]
        return verify_chain(
            self.logits[rows], self.tokens[rows], self.lens[rows], self.params(rows), draft_probs, self.uniforms[rows]
        )

    def expected(self, row: int) -> VerifyResult:
        length = self.lens[row]
        target = np.array([reference.sampling_probs(x, *self.how[row]) for x in self.logits[row].double().numpy()])
        draft = None if self.draft_probs is None else self.draft_probs[row, :length].double().numpy()
        uniforms = self.uniforms[row].numpy()
        tokens = self.tokens[row, :length].numpy()
        return self.rule(target[: length + 1], draft, tokens, np.append(uniforms[:length], uniforms[-1]))

    rule = staticmethod(reference.verify_chain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sampled", [True, False])
def test_torch_results_equal_the_reference(dtype: torch.dtype, sampled: bool) -> None:
    lengths = set()
    for seed in range(20):
        batch = Batch(seed, dtype, sampled)
        results = batch.results()
        assert results == [batch.expected(row) for row in range(len(results))]
        lengths |= {len(result.path) for result in results}
    assert lengths == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("sampled", [True, False])
def test_row_result_is_the_same_in_a_batch_and_alone(sampled: bool) -> None:
    batch = Batch(0, torch.float32, sampled)
    alone = [batch.results(slice(row, row + 1))[0] for row in range(len(batch.lens))]
    assert batch.results() == alone


@pytest.mark.parametrize("sampled", [True, False])
def test_greedy_rows_of_a_mixed_batch_equal_a_greedy_batch(sampled: bool) -> None:
    batch = Batch(1, torch.float32, sampled)
    greedy = verify_chain(batch.logits, batch.tokens, batch.lens)
    assert batch.results()[::3] == greedy[::3]


def test_greedy_rule_accepts_the_targets_choices() -> None:
    logits = torch.full((2, 4, 5), -1.0)
    for position, token in enumerate((3, 1, 4, 0)):
        logits[:, position, token] = 1.0
    tokens = torch.tensor([[3, 1, 2], [3, 1, 4]])
    assert verify_chain(logits, tokens, [3, 2]) == [VerifyResult([1, 2], 4), VerifyResult([1, 2], 4)]
    assert verify_chain(logits, tokens, [0, 3]) == [VerifyResult([], 3), VerifyResult([1, 2, 3], 0)]


def by_reference(p: np.ndarray, q: np.ndarray | None, tokens: list[int], uniforms: list[float]) -> VerifyResult:
    return reference.verify_chain(p, q, np.array(tokens, dtype=np.int64), np.array(uniforms))


def by_torch(p: np.ndarray, q: np.ndarray | None, tokens: list[int], uniforms: list[float]) -> VerifyResult:
    draft = None if q is None else torch.from_numpy(q)[None]
    chain, sampled = torch.tensor([tokens], dtype=torch.int64), torch.tensor([uniforms], dtype=torch.float64)
    (result,) = verify_chain(torch.from_numpy(p)[None], chain, [len(tokens)], Identity(), draft, sampled)
    return result


@pytest.mark.parametrize("rule", [by_reference, by_torch])
class TestEdges:
    def test_equal_distributions_accept_every_token(self, rule: Rule) -> None:
        p = np.array([[0.5, 0.5], [0.5, 0.5]])
        assert rule(p, p[:1], [1], [1 - 2**-32, 0.9]).path == [1]

    def test_token_of_probability_zero_is_not_accepted_at_uniform_zero(self, rule: Rule) -> None:
        p, q = np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[1.0, 0.0]])
        assert rule(p, q, [0], [0.0, 0.0]) == VerifyResult([], 1)
        assert rule(p, None, [0], [0.0, 0.0]) == VerifyResult([], 1)

    def test_missing_residual_mass_samples_the_target(self, rule: Rule) -> None:
        # a draft that is nowhere below the target, as can happen by rounding
        p, q = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), np.array([[1.0, 1.0, 0.0]])
        assert rule(p, q, [1], [0.5, 0.9]) == VerifyResult([], 1)

    @pytest.mark.parametrize("q", [np.zeros((0, 2)), None])
    def test_empty_draft_samples_the_target(self, rule: Rule, q: np.ndarray | None) -> None:
        assert rule(np.array([[0.25, 0.75]]), q, [], [0.3]) == VerifyResult([], 1)

    def test_rejected_deterministic_token_is_not_the_next_token(self, rule: Rule) -> None:
        p = np.array([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]])
        assert rule(p, None, [1], [0.5, 0.49]) == VerifyResult([], 0)
        assert rule(p, None, [1], [0.5, 0.51]) == VerifyResult([], 2)
