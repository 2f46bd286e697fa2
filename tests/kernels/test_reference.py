# SPDX-License-Identifier: Apache-2.0
"""The acceptance rule gives exactly the target's law: every chain, every acceptance and every next token enumerated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from trtspec.kernels import chain, reference

VOCAB, DRAFT_LEN = 4, 2
Rule = Callable[..., tuple[int, int]]


def random_tables(seed: int, zeros: bool) -> dict[tuple[int, ...], np.ndarray]:
    """Return a next-token distribution for every prefix of up to DRAFT_LEN tokens."""
    rng = np.random.default_rng(seed)
    tables = {}
    for length in range(DRAFT_LEN + 1):
        for prefix in product(range(VOCAB), repeat=length):
            row = rng.dirichlet(np.ones(VOCAB) * 0.7)
            if zeros:
                row[rng.integers(VOCAB)] = 0.0
                row[rng.integers(VOCAB)] += 1e-3
            tables[prefix] = row / row.sum()
    return tables


def output_law(rule: Rule, target: dict, draft: dict) -> np.ndarray:
    """Return the law [VOCAB] * (DRAFT_LEN + 1) of the text, a step's shorter output completed by the target itself."""
    law = np.zeros((VOCAB,) * (DRAFT_LEN + 1))
    for tokens in product(range(VOCAB), repeat=DRAFT_LEN):
        prefixes = [tokens[:i] for i in range(DRAFT_LEN + 1)]
        q, p = np.array([draft[x] for x in prefixes[:-1]]), np.array([target[x] for x in prefixes])
        drawn = np.prod([q[i][t] for i, t in enumerate(tokens)])
        # each uniform below p/q accepts, each above rejects: two representatives with the lengths of their intervals
        choices = []
        for i, token in enumerate(tokens):
            edge = min(1.0, p[i][token] / q[i][token]) if q[i][token] > 0 else 1.0
            choices.append([(u, w) for u, w in ((edge / 2, edge), ((1 + edge) / 2, 1 - edge)) if w > 0])
        for picks in product(*choices):
            accept = [u for u, _ in picks]
            weight = drawn * np.prod([w for _, w in picks])
            if weight == 0.0:
                continue
            for (accepted, following), share in next_token_law(rule, p, q, tokens, accept).items():
                add(law, (*tokens[:accepted], following), weight * share, target)
    return law


def next_token_law(rule: Rule, p: np.ndarray, q: np.ndarray, tokens: tuple, accept: list[float]) -> dict:
    """Return {(accepted, next token): probability} over the last uniform, one probe between any two possible edges."""
    rows = [*p, *[np.maximum(p[i] - q[i], 0.0) for i in range(DRAFT_LEN)]]
    edges = {0.0, 1.0}
    for row in rows:
        if row.sum() > 0:
            edges |= set((np.cumsum(row) / row.sum()).tolist())
    found: dict = {}
    ordered = sorted(edges)
    for low, high in pairwise(ordered):
        key = rule(p, q, np.array(tokens), np.array([*accept, (low + high) / 2]))
        found[key] = found.get(key, 0.0) + high - low
    return found


def add(law: np.ndarray, text: tuple[int, ...], weight: float, target: dict) -> None:
    if len(text) == DRAFT_LEN + 1:
        law[text] += weight
        return
    for token in range(VOCAB):
        add(law, (*text, token), weight * target[text][token], target)


def target_law(target: dict) -> np.ndarray:
    law = np.zeros((VOCAB,) * (DRAFT_LEN + 1))
    add(law, (), 1.0, target)
    return law


def torch_rule(p: np.ndarray, q: np.ndarray, tokens: np.ndarray, uniforms: np.ndarray) -> tuple[int, int]:
    batch = [torch.from_numpy(x)[None] for x in (p, q, tokens)]
    lens = torch.tensor([len(tokens)])
    accepted, token = chain.verify_sampled(*batch, lens, torch.from_numpy(uniforms)[None])
    return int(accepted), int(token)


def without_residual(p: np.ndarray, q: np.ndarray, tokens: np.ndarray, uniforms: np.ndarray) -> tuple[int, int]:
    accepted, _ = reference.verify_chain(p, q, tokens, uniforms)
    return accepted, reference.pick(p[accepted], uniforms[-1])


def accepting_all(p: np.ndarray, q: np.ndarray, tokens: np.ndarray, uniforms: np.ndarray) -> tuple[int, int]:
    return len(tokens), reference.pick(p[-1], uniforms[-1])


def by_match(p: np.ndarray, q: np.ndarray, tokens: np.ndarray, uniforms: np.ndarray) -> tuple[int, int]:
    for i, token in enumerate(tokens):
        if p[i].argmax() != token:
            return i, reference.pick(p[i], uniforms[-1])
    return len(tokens), reference.pick(p[-1], uniforms[-1])


@pytest.mark.parametrize("rule", [reference.verify_chain, torch_rule])
@pytest.mark.parametrize("zeros", [False, True])
def test_the_law_of_the_text_is_the_targets(rule: Rule, zeros: bool) -> None:
    for seed in range(2):
        target, draft = random_tables(seed, zeros), random_tables(100 + seed, zeros)
        np.testing.assert_allclose(output_law(rule, target, draft), target_law(target), atol=1e-12)


@pytest.mark.parametrize("wrong", [without_residual, accepting_all, by_match])
def test_a_wrong_rule_is_caught(wrong: Rule) -> None:
    target, draft = random_tables(0, False), random_tables(100, False)
    assert np.abs(output_law(wrong, target, draft) - target_law(target)).max() > 1e-3


def test_torch_gives_the_tokens_of_the_reference() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        vocab, length = int(rng.integers(2, 50)), int(rng.integers(0, 6))
        p = np.array([rng.dirichlet(np.ones(vocab) * 0.3) for _ in range(length + 1)])
        q = np.array([rng.dirichlet(np.ones(vocab) * 0.3) for _ in range(length)]).reshape(length, vocab)
        tokens = np.array([rng.choice(vocab, p=row) for row in q], dtype=np.int64)
        uniforms = rng.integers(0, 1 << 32, length + 1) / (1 << 32)
        assert torch_rule(p, q, tokens, uniforms) == reference.verify_chain(p, q, tokens, uniforms)


def test_rows_of_a_batch_may_draft_different_lengths() -> None:
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(8), (5, 4))
    q = rng.dirichlet(np.ones(8), (5, 3))
    tokens = rng.integers(0, 8, (5, 3))
    uniforms = rng.random((5, 4))
    lens = [3, 0, 1, 2, 3]
    accepted, following = chain.verify_sampled(
        *[torch.from_numpy(x) for x in (p, q, tokens)], torch.tensor(lens), torch.from_numpy(uniforms)
    )
    for row, length in enumerate(lens):
        last = np.append(uniforms[row, :length], uniforms[row, -1])
        expected = reference.verify_chain(p[row, : length + 1], q[row, :length], tokens[row, :length], last)
        assert (int(accepted[row]), int(following[row])) == expected


def test_greedy_accepts_the_targets_own_choices() -> None:
    logits = torch.full((2, 4, 5), -1.0)
    for position, token in enumerate((3, 1, 4, 0)):
        logits[:, position, token] = 1.0
    accepted, following = chain.verify_greedy(logits, torch.tensor([[3, 1, 2], [3, 1, 4]]), torch.tensor([3, 2]))
    assert accepted.tolist() == [2, 2]
    assert following.tolist() == [4, 4]


class TestEdges:
    def test_equal_distributions_accept_everything(self) -> None:
        p = np.array([[0.5, 0.5], [0.5, 0.5]])
        assert reference.verify_chain(p, p[:1], np.array([1]), np.array([1 - 2**-32, 0.9]))[0] == 1
        assert torch_rule(p, p[:1], np.array([1]), np.array([1 - 2**-32, 0.9]))[0] == 1

    @pytest.mark.parametrize("rule", [reference.verify_chain, torch_rule])
    def test_a_token_of_probability_zero_is_not_accepted_at_uniform_zero(self, rule: Rule) -> None:
        p, q = np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[1.0, 0.0]])
        assert rule(p, q, np.array([0]), np.array([0.0, 0.0])) == (0, 1)

    @pytest.mark.parametrize("rule", [reference.verify_chain, torch_rule])
    def test_without_residual_mass_the_target_is_sampled(self, rule: Rule) -> None:
        p, q = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]), np.array([[0.0, 0.5, 0.5]])
        assert rule(p, q, np.array([0]), np.array([0.5, 0.9])) == (0, 2)

    @pytest.mark.parametrize("rule", [reference.verify_chain, torch_rule])
    def test_an_empty_draft_samples_the_target(self, rule: Rule) -> None:
        assert rule(np.array([[0.25, 0.75]]), np.zeros((0, 2)), np.array([], dtype=np.int64), np.array([0.3])) == (0, 1)

    def test_the_last_positive_token_is_taken_at_the_end_of_the_mass(self) -> None:
        weights = np.array([0.1, 0.2, 0.0])
        assert reference.pick(weights, 1.0) == 1
        assert int(chain.pick(torch.from_numpy(weights)[None], torch.tensor([1.0]))) == 1


def warp_of(temperature: float, top_k: int, top_p: float) -> chain.Warp:
    return chain.Warp(
        torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]), bool(top_k) or top_p < 1.0
    )


HOW = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8), (0.5, 7, 0.6), (0.0, 0, 1.0), (1.0, 3, 0.05)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), HOW)
def test_probabilities_are_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    logits = torch.randn(1, 40, dtype=torch.float64) * 3
    ours = warp_of(temperature, top_k, top_p).probs(logits)[0]
    numpy = reference.warp(logits[0].numpy(), temperature, top_k, top_p)
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
