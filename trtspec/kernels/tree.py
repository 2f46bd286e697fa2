# SPDX-License-Identifier: Apache-2.0
"""Verification of drafted trees, batched in torch on any device; the rules equal tests/kernels/reference.py.

A row's result depends only on that row. The decisions of all nodes are computed on the device in one pass. The walk
from the root down is plain Python on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams, pick

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Choice = tuple[int, ...]
T = TypeVar("T")


def in_node_order(choices: Sequence[Choice]) -> list[Choice]:
    """Return choices in the order of their nodes 1, 2, ...: by length, then lexicographically."""
    return sorted(choices, key=lambda choice: (len(choice), choice))


@dataclass(frozen=True, eq=False)
class Tree:
    """The shape of drafted trees: `parents` is [rows, nodes], or [1, nodes] if all rows have the same tree.

    Node 0 is the root, which is the text's last token. Parents precede their children. The root and unused nodes have
    the parent -1.
    """

    parents: Ints

    @classmethod
    def from_choices(cls, choices: Sequence[Choice]) -> Tree:
        """Return the one-row tree of choices such as (0,), (1,), (0, 2), which are ranks from 0 at each level.

        Raise ValueError for a choice that is empty or repeated, or whose prefix is missing.
        """
        nodes: dict[Choice, int] = {(): 0}
        parents = [-1]
        for choice in in_node_order(choices):
            if choice in nodes:
                raise ValueError(f"duplicate choice {choice}" if choice else "a choice is empty")
            if choice[:-1] not in nodes:
                raise ValueError(f"choice {choice} needs {choice[:-1]}, which is missing")
            parents.append(nodes[choice[:-1]])
            nodes[choice] = len(nodes)
        return cls(np.array([parents], dtype=np.int64))

    @cached_property
    def sees(self) -> Bools:
        """Return the attention mask [rows, nodes, nodes]: a node attends to itself and its ancestors.

        Unused nodes attend only to themselves.
        """
        rows, nodes = self.parents.shape
        row = np.arange(rows)[:, None]
        sees = np.tile(np.eye(nodes, dtype=np.bool_), (rows, 1, 1))
        # each iteration doubles the distance; a node without a parent is its own parent
        above = np.where(self.parents < 0, np.arange(nodes), self.parents)
        while True:
            sees |= sees[row, above]
            further = above[row, above]
            if np.array_equal(further, above):
                return sees
            above = further

    @cached_property
    def depths(self) -> Ints:
        """Return each node's distance from the root [rows, nodes]; 0 for an unused node."""
        depths: Ints = self.sees.sum(-1) - 1
        return depths

    def within(self, limits: Sequence[int]) -> Tree:
        """Return the tree truncated at each row's depth limit."""
        if self.depths.max() <= min(limits):
            return self
        return Tree(np.where(self.depths <= np.array(limits)[:, None], self.parents, -1))

    def count(self, limits: Sequence[int]) -> list[int]:
        """Return each row's number of nodes within its depth limit, without the root."""
        within = (self.depths > 0) & (self.depths <= np.array(limits)[:, None])
        counts: list[int] = within.sum(1).tolist()
        return counts

    @cached_property
    def children(self) -> list[list[list[int]]]:
        """Return the children of each row's nodes, in node order."""
        families = []
        for parents in self.parents.tolist():
            family: list[list[int]] = [[] for _ in parents]
            for node, parent in enumerate(parents):
                if parent >= 0:
                    family[parent].append(node)
            families.append(family)
        return families

    @cached_property
    def rounds(self) -> list[tuple[Ints, Ints]]:
        """Return (nodes [n], children [rows, n]) for first children, then for second children, and so on.

        `nodes` are those with such a child in any row. Rows in which a node lacks such a child contain 0.
        """
        rounds = []
        for turn in range(max(len(family) for families in self.children for family in families)):
            by_row = [[family[turn] if len(family) > turn else 0 for family in families] for families in self.children]
            children = np.array(by_row, dtype=np.int64)
            nodes = np.flatnonzero(children.any(0))
            rounds.append((nodes, children[:, nodes]))
        return rounds


@dataclass(frozen=True)
class TypicalAcceptance:
    """Parameters of typical acceptance (Medusa, arXiv:2401.10774, section 2.3.1), which is lossy."""

    threshold: float = 0.09
    alpha: float = 0.3


def verify_tree(
    logits: Tensor,
    tokens: Tensor,
    tree: Tree,
    limits: Sequence[int],
    params: SamplingParams | None = None,
    draft_probs: Tensor | None = None,
    uniforms: Tensor | None = None,
    typical: TypicalAcceptance | None = None,
) -> list[VerifyResult]:
    """Verify trees; return each row's accepted path and its next token.

    Results are copied to the host at most twice.

    Args:
        logits: [rows, nodes, vocab], the target's logits after each node.
        tokens: [rows, nodes], the draft tokens; the root and unused nodes may have any id.
        tree: the shape of the trees.
        limits: the maximum number of accepted tokens of each row.
        params: the sampling parameters. Without `params` and `uniforms`, all rows are greedy.
        draft_probs: [rows, nodes, vocab], the distribution of each node's children, which were sampled in node order
            without replacement; a row of zeros, or None, for deterministic children.
        uniforms: [rows, nodes] in [0, 1). With `draft_probs`, a node's uniform decides whether it is accepted, and the
            root's samples the next token. Without `draft_probs`, a node's uniform samples the token after it.
        typical: if given, use this lossy rule, regardless of `draft_probs`; the root's uniform samples the next token.
            Greedy rows stay exact.
    """
    tree = tree.within(limits)
    if params is None or uniforms is None:
        return _agree(tree, logits.argmax(-1), tokens)
    target_probs = params.probs(logits)
    if typical is not None:
        paths = _longest(tree, _is_typical(target_probs, tokens, tree, typical))
    elif draft_probs is not None:
        target_probs, accepted = _reject_recursively(target_probs, draft_probs, tokens, tree, uniforms)
        paths = _walk(tree, accepted.tolist())
    else:
        sampled = pick(target_probs.flatten(0, 1), uniforms.flatten()).view(uniforms.shape)
        return _agree(tree, sampled, tokens)
    return _draw_after(paths, target_probs, uniforms[:, 0])


def _agree(tree: Tree, sampled: Tensor, tokens: Tensor) -> list[VerifyResult]:
    """Verify trees by exact matching: follow the children with the token `sampled` [rows, nodes] at their parent."""
    following, drafted = torch.stack([sampled, tokens]).tolist()
    rows = zip(following, drafted, _per_row(tree.parents.tolist(), len(tokens)), strict=True)
    fits = [[own[parent] == token for token, parent in zip(row, parents, strict=True)] for own, row, parents in rows]
    paths = _walk(tree, fits)
    return [VerifyResult(path, own[_end(path)]) for path, own in zip(paths, following, strict=True)]


def _walk(tree: Tree, fits: list[list[bool]]) -> list[list[int]]:
    """Return the path from each row's root through the first fitting child of each node."""
    paths = []
    for fit, family in zip(fits, _per_row(tree.children, len(fits)), strict=True):
        path: list[int] = []
        while (child := next((child for child in family[_end(path)] if fit[child]), None)) is not None:
            path.append(child)
        paths.append(path)
    return paths


def _end(path: list[int]) -> int:
    """Return the last node of a path; the root if the path is empty."""
    return path[-1] if path else 0


def _draw_after(paths: list[list[int]], probs: Tensor, uniforms: Tensor) -> list[VerifyResult]:
    """Sample the token after each path from the probs [rows, nodes, vocab] at its last node, with uniforms [rows]."""
    ends = torch.tensor([_end(path) for path in paths], device=probs.device)
    tokens = pick(probs[torch.arange(len(paths), device=probs.device), ends], uniforms).tolist()
    return [VerifyResult(path, token) for path, token in zip(paths, tokens, strict=True)]


def _is_typical(target_probs: Tensor, tokens: Tensor, tree: Tree, typical: TypicalAcceptance) -> Tensor:
    """Return a mask [rows, nodes] of the nodes whose token is probable enough after its parent; undefined for roots.

    A one-hot row has entropy 0, so only its most probable token can be accepted.
    """
    entropy = torch.special.entr(target_probs).sum(-1)
    bounds = (typical.alpha * torch.exp(-entropy)).clamp_max(typical.threshold)
    row = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    parents = torch.from_numpy(tree.parents).to(tokens.device).clamp_min(0)
    return target_probs[row, parents, tokens] > bounds[row, parents]


def _longest(tree: Tree, fits: Tensor) -> list[list[int]]:
    """Return each row's longest path of nodes in the mask `fits` [rows, nodes]; ties go to the first in node order."""
    longest = []
    for fit, parents in zip(fits.tolist(), _per_row(tree.parents.tolist(), len(fits)), strict=True):
        paths: dict[int, list[int]] = {0: []}
        for node, parent in enumerate(parents):
            if fit[node] and parent in paths:
                paths[node] = [*paths[parent], node]
        longest.append(max(paths.values(), key=len))
    return longest


def _reject_recursively(
    target_probs: Tensor, draft_probs: Tensor, tokens: Tensor, tree: Tree, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Test every node as if its parent were accepted: all first children, then all second ones, and so on.

    A child is tested as if its earlier siblings were rejected. If one of them is accepted, the walk ignores the child's
    result. Return the target's residual after each node if all of its children are rejected [rows, nodes, vocab], and a
    mask of the accepted nodes [rows, nodes].
    """
    left, drafts = target_probs.to(draft_probs.dtype, copy=True), draft_probs.clone()
    accepted = torch.zeros_like(tokens, dtype=torch.bool)
    for turn in tree.rounds:
        nodes, children = (torch.from_numpy(numbers).to(tokens.device) for numbers in turn)
        children = children.expand(len(tokens), -1)
        token = tokens.gather(1, children).unsqueeze(2)
        target, draft = left.index_select(1, nodes), drafts.index_select(1, nodes)
        proposal = _proposal(draft, token)
        bound = uniforms.gather(1, children).unsqueeze(2) * proposal.gather(2, token)
        accepted.scatter_(1, children, (bound < target.gather(2, token)).squeeze(2))
        left.index_copy_(1, nodes, _rest(target, proposal, tested=(children > 0).unsqueeze(2)))
        drafts.index_copy_(1, nodes, draft.scatter_(2, token, 0.0))
    return left, accepted


def _proposal(draft: Tensor, token: Tensor) -> Tensor:
    """Return the distributions [rows, n, vocab] from which the tokens [rows, n, 1] were drafted.

    These are the normalized remaining weights of `draft`, or one-hot if all weights are zero.
    """
    mass = draft.sum(-1, keepdim=True)
    empty = mass == 0.0
    proposal = draft / mass.masked_fill_(empty, 1.0)
    return proposal.scatter_(2, token, proposal.gather(2, token).masked_fill_(empty, 1.0))


def _rest(target: Tensor, proposal: Tensor, tested: Tensor) -> Tensor:
    """Return the target's residual [rows, n, vocab] after a rejection; unchanged where no child was `tested`."""
    residual = (target - proposal).clamp_min_(0.0)
    mass = residual.sum(-1, keepdim=True)
    return torch.where(tested & (mass > 0.0), residual.div_(mass), target)


def _per_row(items: list[T], rows: int) -> list[T]:
    """Return one item per row; a single item is repeated for all rows."""
    return items * rows if len(items) == 1 else items
