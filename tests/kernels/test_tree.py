# SPDX-License-Identifier: Apache-2.0
"""Trees in torch: their shape, and the reference's tokens for every kind of row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.kernels import reference
from tests.kernels.scenarios import CHAINS, TREES, Corners, Identity, boxes_of
from trtspec.kernels.chain import VerifyResult, verify_chain
from trtspec.kernels.sampling import SamplingParams
from trtspec.kernels.tree import Tree, TypicalAcceptance, in_node_order, verify_tree

Rule = Callable[[np.ndarray, Tree, tuple[int, ...], int, TypicalAcceptance], VerifyResult]
MODES = [(True, None), (False, None), (False, TypicalAcceptance())]


class TestTree:
    def test_nodes_are_ordered_by_choice_length_and_then_by_value(self) -> None:
        choices = [(0, 1), (1,), (0, 0, 2), (0,), (2,), (0, 0), (1, 0)]
        assert in_node_order(choices) == [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 2)]
        assert Tree.from_choices(choices).parents.tolist() == [[-1, 0, 0, 0, 1, 1, 2, 4]]

    def test_empty_choices_give_only_the_root(self) -> None:
        assert Tree.from_choices([]).parents.tolist() == [[-1]]

    @pytest.mark.parametrize(
        ("choices", "message"),
        [
            ([(0,), (1, 0)], r"choice \(1, 0\) needs \(1,\), which is missing"),
            ([(0,), (1,), (0,)], r"duplicate choice \(0,\)"),
            ([(0,), ()], "a choice is empty"),
        ],
    )
    def test_invalid_choices_are_rejected_with_the_reason(self, choices: list[tuple[int, ...]], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Tree.from_choices(choices)

    def test_two_rows_with_unused_nodes_have_separate_shapes(self) -> None:
        tree = Tree(np.array([[-1, 0, 1, -1, 1], [-1, -1, 0, 0, 3]]))
        assert tree.depths.tolist() == [[0, 1, 2, 0, 2], [0, 0, 1, 1, 2]]
        assert tree.children == [[[1], [2, 4], [], [], []], [[2, 3], [], [], [4], []]]
        seen = [[np.flatnonzero(row).tolist() for row in sees] for sees in tree.sees]
        assert seen == [[[0], [0, 1], [0, 1, 2], [3], [0, 1, 4]], [[0], [1], [0, 2], [0, 3], [0, 3, 4]]]
        rounds = [(nodes.tolist(), children.tolist()) for nodes, children in tree.rounds]
        assert rounds == [([0, 1, 3], [[1, 2, 0], [2, 0, 4]]), ([0, 1], [[0, 4], [3, 0]])]

    def test_chain_nodes_see_all_ancestors(self) -> None:
        tree = Tree(np.arange(-1, 20)[None])
        assert np.array_equal(tree.sees[0], np.tri(21, dtype=np.bool_))
        assert tree.depths.tolist() == [list(range(21))]

    def test_rows_are_truncated_at_their_limits(self) -> None:
        tree = Tree.from_choices([(0,), (1,), (0, 0), (0, 0, 0)])
        assert tree.within([3, 5]) is tree
        assert tree.within([2, 0, 3]).parents.tolist() == [[-1, 0, 0, 1, -1], [-1] * 5, [-1, 0, 0, 1, 3]]
        assert not tree.within([0]).rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("zeros", [False, True])
def test_torch_equals_the_reference_on_both_sides_of_every_threshold(name: str, zeros: bool) -> None:
    scenario = TREES[name]
    corners = Corners.of(boxes_of(scenario, 0, zeros))
    results = verify_tree(
        corners.stack("target_probs"),
        corners.stack("tokens"),
        Tree(np.array([scenario.parents])),
        [scenario.limit] * len(corners.cases),
        Identity(),
        corners.draft_probs,
        corners.uniforms,
    )
    assert results == corners.results


def test_tree_rule_equals_the_chain_rule_for_a_chain() -> None:
    """Not only the distributions, but also the results for the same uniforms are equal."""
    corners = Corners.of(boxes_of(CHAINS["sampled"], 0, True))
    logits, tokens, limits = corners.stack("target_probs"), corners.stack("tokens"), [2] * len(corners.cases)
    as_tree = verify_tree(
        logits,
        tokens,
        Tree.from_choices([(0,), (0, 0)]),
        limits,
        Identity(),
        corners.draft_probs,
        corners.uniforms.roll(1, 1),
    )
    assert as_tree == verify_chain(
        logits, tokens[:, 1:], limits, Identity(), corners.draft_probs[:, :-1], corners.uniforms
    )


def random_parents(rng: np.random.Generator, nodes: int) -> np.ndarray:
    """Return a tree in which about every sixth node is unused."""
    parents = [-1]
    for node in range(1, nodes):
        used = [other for other in range(node) if other == 0 or parents[other] >= 0]
        parents.append(int(rng.choice(used)) if rng.random() < 0.85 else -1)
    return np.array(parents)


class Batch:
    """Random trees, one per row, with different limits; every third row is greedy, others use different parameters.

    Tokens are drawn approximately from the target's distribution, without replacement; a greedy row's are
    deterministic.
    """

    def __init__(self, seed: int, dtype: torch.dtype, sampled: bool, rows: int = 9, nodes: int = 12) -> None:
        rng = np.random.default_rng(seed)
        vocab = int(rng.integers(nodes, 2 * nodes))
        self.tree = Tree(np.array([random_parents(rng, nodes) for _ in range(rows)]))
        self.limits = rng.integers(0, 5, rows).tolist()
        self.how = [(0.0 if row % 3 == 0 else 0.5 + row / 10, row % 4 * 5, 1.0 - row % 2 * 0.1) for row in range(rows)]
        self.logits = torch.from_numpy(rng.normal(size=(rows, nodes, vocab)) * 2).to(dtype)
        near = self.logits.double().numpy() + rng.normal(size=(rows, nodes, vocab)) * 0.5
        self.uniforms = torch.from_numpy(rng.random((rows, nodes)))
        probs = np.array([[reference.sampling_probs(x, 1.0, 0, 1.0) for x in row] for row in near])
        tokens = np.zeros((rows, nodes), dtype=np.int64)
        for row, families in enumerate(self.tree.children):
            for node, family in enumerate(families):
                tokens[row, family] = rng.choice(vocab, len(family), replace=False, p=probs[row, node])
        self.tokens = torch.from_numpy(tokens)
        probs[::3] = 0.0
        self.draft_probs = torch.from_numpy(probs).to(dtype) if sampled else None

    def params(self, rows: slice) -> SamplingParams:
        temperature, top_k, top_p = (torch.tensor(list(column)) for column in zip(*self.how[rows], strict=True))
        return SamplingParams(temperature, top_k, top_p, truncates=True)

    def results(self, rows: slice = slice(None), typical: TypicalAcceptance | None = None) -> list[VerifyResult]:
        tree, draft_probs = Tree(self.tree.parents[rows]), None if self.draft_probs is None else self.draft_probs[rows]
        batch = (self.logits[rows], self.tokens[rows], tree, self.limits[rows], self.params(rows))
        return verify_tree(*batch, draft_probs, self.uniforms[rows], typical)

    def expected(self, row: int, typical: TypicalAcceptance | None = None) -> VerifyResult:
        target = np.array([reference.sampling_probs(x, *self.how[row]) for x in self.logits[row].double().numpy()])
        tree = (self.tokens[row].numpy(), self.tree.parents[row], self.limits[row])
        uniforms = self.uniforms[row].numpy()
        if typical is not None:
            return reference.verify_typical(target, *tree, uniforms[0], typical.threshold, typical.alpha)
        if self.draft_probs is None:
            return reference.verify_deterministic(target, *tree, uniforms)
        return reference.verify_sampled(target, self.draft_probs[row].double().numpy(), *tree, uniforms)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("sampled", "typical"), MODES)
def test_torch_results_equal_the_reference(
    dtype: torch.dtype, sampled: bool, typical: TypicalAcceptance | None
) -> None:
    lengths = set()
    for seed in range(20):
        batch = Batch(seed, dtype, sampled)
        results = batch.results(typical=typical)
        assert results == [batch.expected(row, typical) for row in range(len(results))]
        lengths |= {len(result.path) for result in results}
    assert lengths >= {0, 1, 2, 3}


@pytest.mark.parametrize(("sampled", "typical"), MODES)
def test_row_result_is_the_same_in_a_batch_and_alone(sampled: bool, typical: TypicalAcceptance | None) -> None:
    batch = Batch(0, torch.float32, sampled)
    alone = [batch.results(slice(row, row + 1), typical)[0] for row in range(len(batch.limits))]
    assert batch.results(typical=typical) == alone


@pytest.mark.parametrize(("sampled", "typical"), MODES)
def test_greedy_rows_of_a_mixed_batch_equal_a_greedy_batch(sampled: bool, typical: TypicalAcceptance | None) -> None:
    accepted = 0
    for seed in range(10):
        batch = Batch(seed, torch.float32, sampled)
        greedy = verify_tree(batch.logits, batch.tokens, batch.tree, batch.limits)[::3]
        assert batch.results(typical=typical)[::3] == greedy
        accepted += sum(len(result.path) for result in greedy)
    assert accepted > 10


def test_greedy_rule_follows_the_first_child_with_the_targets_choice() -> None:
    tree = Tree.from_choices([(0,), (1,), (2,), (1, 0), (1, 1)])
    tokens = torch.tensor([[9, 3, 4, 4, 0, 2]])
    logits = torch.full((1, 6, 5), -1.0)
    for node, token in enumerate((4, 1, 2, 0, 1, 3)):
        logits[0, node, token] = 1.0
    assert verify_tree(logits, tokens, tree, [2]) == [VerifyResult([2, 5], 3)]
    assert verify_tree(logits, tokens, tree, [1]) == [VerifyResult([2], 2)]
    assert verify_tree(logits, tokens, tree, [0]) == [VerifyResult([], 4)]


def test_token_of_probability_zero_is_not_accepted_at_uniform_zero() -> None:
    target = torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    draft = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    tokens, tree = torch.tensor([[0, 0, 1]]), Tree.from_choices([(0,), (1,)])
    for draft_probs in (draft, None):
        results = verify_tree(target, tokens, tree, [2], Identity(), draft_probs, torch.zeros(1, 3))
        assert results == [VerifyResult([], 2)]


def typical_by_reference(
    rows: np.ndarray, tree: Tree, tokens: tuple[int, ...], limit: int, how: TypicalAcceptance
) -> VerifyResult:
    return reference.verify_typical(
        rows, np.array(tokens), tree.parents[0], limit, 0.75, threshold=how.threshold, alpha=how.alpha
    )


def typical_by_torch(
    rows: np.ndarray, tree: Tree, tokens: tuple[int, ...], limit: int, how: TypicalAcceptance
) -> VerifyResult:
    uniforms = torch.full((1, len(tokens)), 0.75)
    logits, drafted = torch.from_numpy(rows)[None], torch.tensor([tokens])
    (result,) = verify_tree(logits, drafted, tree, [limit], Identity(), None, uniforms, how)
    return result


@pytest.mark.parametrize("rule", [typical_by_reference, typical_by_torch])
class TestTypical:
    # entropies of 0.8018 and 0.9433 nats: exp(-entropy) is 0.4485 and 0.3893
    SHARP, FLAT = (0.7, 0.2, 0.1), (0.5, 0.4, 0.1)
    ROWS = np.array([SHARP, FLAT, FLAT, SHARP, SHARP])
    TREE = Tree.from_choices([(0,), (1,), (0, 0), (1, 0)])
    TOKENS = (0, 0, 1, 2, 1)  # of probability 0.7 and 0.2 after the root, 0.1 and 0.4 after those

    def test_longest_path_of_likely_tokens_is_accepted(self, rule: Rule) -> None:
        # 0.2 passes 0.3 * 0.4485 and 0.4 passes 0.3 * 0.3893; 0.1 does not; 0.75 of (0.7, 0.2, 0.1) is token 1
        assert rule(self.ROWS, self.TREE, self.TOKENS, 2, TypicalAcceptance(0.5, 0.3)) == VerifyResult([2, 4], 1)

    def test_higher_alpha_accepts_fewer_tokens(self, rule: Rule) -> None:
        # 0.2 does not pass 0.5 * 0.4485; 0.75 of (0.5, 0.4, 0.1) is token 1
        assert rule(self.ROWS, self.TREE, self.TOKENS, 2, TypicalAcceptance(0.5, 0.5)) == VerifyResult([1], 1)

    def test_threshold_caps_the_required_probability(self, rule: Rule) -> None:
        # 0.1 passes 0.09 but not 0.1; the first of two equally long paths wins
        assert rule(self.ROWS, self.TREE, self.TOKENS, 2, TypicalAcceptance(0.09, 0.3)) == VerifyResult([1, 3], 1)
        assert rule(self.ROWS, self.TREE, self.TOKENS, 2, TypicalAcceptance(0.1, 0.3)) == VerifyResult([2, 4], 1)

    def test_depth_limit_is_respected(self, rule: Rule) -> None:
        assert rule(self.ROWS, self.TREE, self.TOKENS, 1, TypicalAcceptance()) == VerifyResult([1], 1)
        assert rule(self.ROWS, self.TREE, self.TOKENS, 0, TypicalAcceptance()) == VerifyResult([], 1)
