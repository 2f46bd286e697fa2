# SPDX-License-Identifier: Apache-2.0
"""Verification of drafted trees: the rules of `reference`, batched in torch on any device.

A row's result depends on that row alone. Where every node's token can be known before the walk (greedy rows, siblings
that were chosen), all are found at once on the device and the walk is plain Python on the host.
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

from trtspec.kernels.sampling import Warp, pick
from trtspec.kernels.verdict import Verdict

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Choice = tuple[int, ...]
T = TypeVar("T")


def in_node_order(choices: Sequence[Choice]) -> list[Choice]:
    """Return choices as the nodes 1, 2, ... of their tree stand: shorter ones first, equal lengths in order."""
    return sorted(choices, key=lambda choice: (len(choice), choice))


@dataclass(frozen=True, eq=False)
class Tree:
    """The shape of drafted trees: `parents` [rows, nodes], or [1, nodes] for a batch of equal trees.

    Node 0 is the root, which stands for the text's last token. A node stands after its parent; the root and unused
    nodes have parent -1.
    """

    parents: Ints

    @classmethod
    def of_paths(cls, choices: Sequence[Choice]) -> Tree:
        """Return the one-row tree of choices such as (0,), (1,), (0, 2): the k-th best token of each level.

        Raises ValueError for a choice that is empty, stands twice, or whose prefix is missing.
        """
        nodes: dict[Choice, int] = {(): 0}
        parents = [-1]
        for choice in in_node_order(choices):
            if choice in nodes:
                raise ValueError(f"choice {choice} stands twice" if choice else "a choice is empty")
            if choice[:-1] not in nodes:
                raise ValueError(f"choice {choice} needs {choice[:-1]}, which is missing")
            parents.append(nodes[choice[:-1]])
            nodes[choice] = len(nodes)
        return cls(np.array([parents], dtype=np.int64))

    @cached_property
    def sees(self) -> Bools:
        """[rows, nodes, nodes]: whether a node sees another: itself and its ancestors; an unused node only itself."""
        rows, nodes = self.parents.shape
        sees = np.zeros((rows, nodes, nodes), dtype=np.bool_)
        sees[:, range(nodes), range(nodes)] = True
        row, node = np.nonzero(self.parents >= 0)
        above = self.parents[row, node]
        while len(node):
            sees[row, node, above] = True
            above = self.parents[row, above]
            lower = above >= 0
            row, node, above = row[lower], node[lower], above[lower]
        return sees

    @cached_property
    def depths(self) -> Ints:
        """[rows, nodes]: how far each node is below the root; 0 for an unused node."""
        depths: Ints = self.sees.sum(-1) - 1
        return depths

    def count(self, limits: Sequence[int]) -> list[int]:
        """Return how many nodes of each row's tree, the root not among them, lie within its limit of depth."""
        within = (self.depths > 0) & (self.depths <= np.array(limits)[:, None])
        counts: list[int] = within.sum(1).tolist()
        return counts

    @cached_property
    def children(self) -> list[list[list[int]]]:
        """For each row and node its children, in node order."""
        families = []
        for parents in self.parents.tolist():
            family: list[list[int]] = [[] for _ in parents]
            for node, parent in enumerate(parents):
                if parent >= 0:
                    family[parent].append(node)
            families.append(family)
        return families


@dataclass(frozen=True)
class Typical:
    """Acceptance of what is probable enough (Medusa, arXiv:2401.10774, section 2.3.1); the text's law is not kept."""

    threshold: float = 0.09
    alpha: float = 0.3


def verify_tree(
    logits: Tensor,
    tokens: Tensor,
    tree: Tree,
    limits: Sequence[int],
    warp: Warp | None = None,
    draft_probs: Tensor | None = None,
    uniforms: Tensor | None = None,
    typical: Typical | None = None,
) -> list[Verdict]:
    """Return the path of each row's tree that the target takes, and its next token; one transfer to the host.

    Args:
        logits: [rows, nodes, vocab], the target's after each node.
        tokens: [rows, nodes], drafted; the root's and unused nodes' may be any of the vocabulary.
        tree: how the nodes hang together.
        limits: the most tokens that may be accepted in each row.
        warp: how rows sample, together with `uniforms`; without them every row is greedy.
        draft_probs: [rows, nodes, vocab], what each node's children were drawn from, in node order without
            replacement; a row of zeros, and None, for children that were chosen.
        uniforms: [rows, nodes] in [0, 1). With `draft_probs` a node's accepts it and the root's draws the next token;
            without, a node's draws the token after it.
        typical: accept by this lossy rule, whatever the children were drawn from; the root's uniform draws the next
            token. Greedy rows stay exact.
    """
    rows = len(tokens)
    if warp is None or uniforms is None:
        return _walk(tree, limits, logits.argmax(-1), tokens)
    target_probs = warp.probs(logits)
    if typical is not None:
        drawn = _draw(target_probs, uniforms[:, :1].expand(rows, tokens.shape[1]))
        return _longest(tree, limits, drawn, _is_typical(target_probs, tokens, tree, typical))
    if draft_probs is None:
        return _walk(tree, limits, _draw(target_probs, uniforms), tokens)
    return _reject_recursively(target_probs, draft_probs, tokens, tree, limits, uniforms)


def _draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Return a token for every node [rows, nodes]."""
    return pick(probs.flatten(0, 1), uniforms.flatten()).view(uniforms.shape)


def _walk(tree: Tree, limits: Sequence[int], drawn: Tensor, tokens: Tensor) -> list[Verdict]:
    """Go down from each root as long as a child has the token that was drawn [rows, nodes] after its parent."""
    verdicts = []
    on_host = torch.stack([drawn, tokens], 1).tolist()
    for (following, drafted), family, limit in zip(on_host, _of_rows(tree.children, len(limits)), limits, strict=True):
        node = 0
        path: list[int] = []
        while len(path) < limit:
            agreeing = (child for child in family[node] if drafted[child] == following[node])
            if (child := next(agreeing, None)) is None:
                break
            node = child
            path.append(node)
        verdicts.append(Verdict(path, following[node]))
    return verdicts


def _is_typical(target_probs: Tensor, tokens: Tensor, tree: Tree, typical: Typical) -> Tensor:
    """Return for each node [rows, nodes] whether its token is probable enough after its parent; roots say nothing.

    A one-hot row has entropy 0, so that of its children only the likeliest token can be.
    """
    entropy = torch.special.entr(target_probs).sum(-1)
    bounds = (typical.alpha * torch.exp(-entropy)).clamp_max(typical.threshold)
    row = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    parents = torch.from_numpy(tree.parents).to(tokens.device).clamp_min(0)
    return target_probs[row, parents, tokens] > bounds[row, parents]


def _longest(tree: Tree, limits: Sequence[int], drawn: Tensor, fits: Tensor) -> list[Verdict]:
    """Take the longest path of nodes that fit [rows, nodes], the first in node order among equals."""
    verdicts = []
    on_host = torch.stack([drawn, fits.long()], 1).tolist()
    for (following, fit), parents, limit in zip(
        on_host, _of_rows(tree.parents.tolist(), len(limits)), limits, strict=True
    ):
        paths: dict[int, list[int]] = {0: []}
        for node, parent in enumerate(parents):
            if fit[node] and parent in paths and len(paths[parent]) < limit:
                paths[node] = [*paths[parent], node]
        end = max(paths, key=lambda node: len(paths[node]))
        verdicts.append(Verdict(paths[end], following[end]))
    return verdicts


def _reject_recursively(
    target_probs: Tensor, draft_probs: Tensor, tokens: Tensor, tree: Tree, limits: Sequence[int], uniforms: Tensor
) -> list[Verdict]:
    """Test the nodes in order, all rows at once and without asking the host where a row stands.

    A node stands after its parent, so one pass meets every child of the node a row has come to, and the siblings of
    an accepted node no longer hang on it.
    """
    within = np.where(tree.depths <= np.array(limits)[:, None], tree.parents, -1)
    parents = torch.from_numpy(within).to(tokens.device)
    target, draft = target_probs[:, 0], draft_probs[:, 0]
    position = torch.zeros_like(tokens[:, 0])
    taken = torch.zeros_like(tokens)
    for node in range(1, tokens.shape[1]):
        token = tokens[:, node, None]
        proposal = _proposal(draft, token)
        tested = (parents[:, node] == position).unsqueeze(1)
        accepted = tested & (uniforms[:, node, None] * proposal.gather(1, token) < target.gather(1, token))
        target = torch.where(accepted, target_probs[:, node], torch.where(tested, _rest(target, proposal), target))
        draft = torch.where(accepted, draft_probs[:, node], torch.where(tested, draft.scatter(1, token, 0.0), draft))
        taken[:, node] = accepted.squeeze(1)
        position = torch.where(accepted.squeeze(1), node, position)
    verdicts = torch.cat([taken, pick(target, uniforms[:, 0]).unsqueeze(1)], 1).tolist()
    return [Verdict([node for node, took in enumerate(row) if took], token) for *row, token in verdicts]


def _proposal(draft: Tensor, token: Tensor) -> Tensor:
    """Return what token [rows, 1] was drawn from: the weights [rows, vocab] left, or where none is, itself."""
    mass = draft.sum(-1, keepdim=True)
    return torch.where(mass > 0, draft / mass, torch.zeros_like(draft).scatter_(1, token, 1.0))


def _rest(target: Tensor, proposal: Tensor) -> Tensor:
    """Return what the target still has to give after a rejection [rows, vocab]."""
    residual = (target - proposal).clamp_min(0.0)
    mass = residual.sum(-1, keepdim=True)
    return torch.where(mass > 0, residual / mass, target)


def _of_rows(items: list[T], rows: int) -> list[T]:
    """Return one item a row, where one may stand for all."""
    return items * rows if len(items) == 1 else items
