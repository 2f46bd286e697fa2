# SPDX-License-Identifier: Apache-2.0
"""Base classes of drafters that read the target's hidden states: draft heads such as EAGLE's and Medusa's.

A `FeatureHead` predicts the target's features, which are hidden states. Its input is a pair: the feature of position t
and the token at t + 1, stored at position t of the head's cache. From a pair the head predicts the feature of position
t + 1, which gives the logits of the next token. The predicted feature and the next token form the following pair,
because the target's feature for that position is not available yet.

The head's cache keeps only pairs with the target's features. The features of a step's accepted path wait until the
token after them is known, and go through the head when the next draft begins. Pairs of drafted tokens are stored after
them in the cache and are then overwritten.

A `HiddenStateDrafter` starts from the target's hidden state at the end of the verified text.

Static trees (EAGLE, arXiv:2401.15077): a node is a rank among the most probable tokens after its parent. The tree is
built level by level, with one pass of the head over the nodes that have children. If a request samples, a node's
children are sampled without replacement instead; the first sample replaces the lowest rank.

Dynamic trees (EAGLE-2, arXiv:2406.16858): the shape follows the head's confidence, for each row and step. Level by
level, the head ranks `top_k` tokens after each node of its frontier. A token's score is the head's probability of the
whole path to it. The `top_k` best tokens of a level are the next frontier, and the best of all ranked tokens are the
draft. No token scores higher than its parent, which is ranked before it, so the draft is a tree. The tokens are
deterministic even if a request samples: they depend only on the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import (
    SAME,
    BatchShape,
    ConfidenceFloor,
    Drafter,
    DrafterConfig,
    DraftSampling,
    DraftTokens,
    VerifyOutcome,
    Vocabulary,
    draft_chain,
)
from trtspec.engine.model.decoder import FINAL, KVCache
from trtspec.engine.model.positions import NextLevel, Window, Windows
from trtspec.kernels.sampling import pick
from trtspec.kernels.tree import Choice, Tree, in_node_order


class FeatureHead(ABC):
    """Interface of draft heads; `config` describes the head's layers, and features have `config.hidden_size` elements.

    `aux_layers` are the target's auxiliary hidden-state layers that the head reads (see
    `Decoder.forward_with_features`). Tokens are the target's ids unless stated otherwise: a head may have a smaller
    `vocabulary`.
    """

    aux_layers: tuple[int, ...]
    vocabulary: Vocabulary = SAME

    def __init__(self, config: ModelConfig, room: BatchShape) -> None:
        self.config = config
        self.device, self.dtype = room.device, room.dtype
        self.windows = Windows(config, room.max_len, room.device, room.dtype)
        self.cache = KVCache(config, room.rows, room.max_len, room.device, room.dtype)

    @abstractmethod
    def fuse(self, hidden_states: Tensor) -> Tensor:
        """Return features [n, hidden] for hidden states of the target [n, aux_layers * target hidden]."""

    @abstractmethod
    def forward(self, tokens: Tensor, features: Tensor, window: Window) -> Tensor:
        """Return the features [rows * width, hidden] that follow (feature, token) pairs; write the pairs to the cache.

        `tokens` are [rows, width], `features` [rows * width, hidden], and `window` has the pairs' positions.
        """

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Return the logits [n, head vocabulary] of the tokens after features [n, hidden]."""


class TreeBuilder(ABC):
    """Interface of builders for one draft shape; `scratch` is the number of head cache positions used after a text."""

    scratch: int

    @abstractmethod
    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return a draft of at most `depth` consecutive tokens after each row's text.

        `features` [rows, hidden] follow each row's last (feature, token) pair, which is at position `ends[row]` of the
        head's cache.
        """


class Chain(TreeBuilder):
    """Builder of chains of the most probable tokens, or of tokens sampled from the head's distribution."""

    def __init__(self, depth: int, floors: ConfidenceFloor) -> None:
        self.scratch, self._floors = depth, floors

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        def forward(tokens: Tensor, window: Window) -> Tensor:
            nonlocal features
            features = head.forward(tokens.unsqueeze(1), features, window)
            return head.logits(features)

        windows = head.windows.singles([end + 1 for end in ends], depth - 1)
        return draft_chain(head.logits(features), forward, windows, sampling, self._floors, head.vocabulary)


class FeaturePairDrafter(Drafter):
    """Base of drafters that keep a head's cache in sync with the text; accepted features wait for `_take`."""

    def __init__(self, head: FeatureHead) -> None:
        self._head = head
        self.aux_layers = head.aux_layers
        self._waiting: dict[int, list[Tensor]] = {}  # by row: hidden states of the target [n, aux_layers * hidden]
        self._prompts: Sequence[Sequence[int]] = ()
        self._first_row = 0

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Store the prompts for `read`, which processes them with the target's features."""
        self._prompts, self._first_row = prompts, first_row

    def read(self, features: Tensor, start: int) -> None:
        """Write the (feature, token) pairs of a chunk of positions into the head's cache.

        The token after a prompt's last feature is unknown, so its pair and later ones are placeholders, overwritten
        later.
        """
        rows, width, _ = features.shape
        following = [[*prompt[start + 1 : start + 1 + width]] for prompt in self._prompts]
        window = self._head.windows.chain([start] * rows, width, self._first_row)
        tokens = pad_rows(following, self._head.device, width)
        self._head.forward(tokens, self._head.fuse(features.flatten(0, 1)), window)
        for row, prompt in enumerate(self._prompts):
            if start < len(prompt) <= start + width:
                at = len(prompt) - 1 - start
                self._waiting[self._first_row + row] = [features[row, at : at + 1].clone()]

    def _take(self, rows: int) -> list[Tensor]:
        """Remove and return each row's waiting hidden states [n, aux_layers * hidden]."""
        waiting = [torch.cat(self._waiting[row]) for row in range(rows)]
        self._waiting = {row: [] for row in range(rows)}
        return waiting

    def observe(self, outcome: VerifyOutcome) -> None:
        for row, accepted in enumerate(outcome.accepted_features()):
            self._waiting[row].append(accepted)

    def move_row(self, source: int, target: int, length: int) -> None:
        self._head.cache.move_row(source, target, length)
        self._waiting[target] = self._waiting[source]


class FeatureDrafter(FeaturePairDrafter):
    """Drafter that runs a head token by token; a `TreeBuilder` determines the shape of the draft."""

    def __init__(self, head: FeatureHead, builder: TreeBuilder) -> None:
        super().__init__(head)
        self._builder = builder

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Process the waiting features, then grow the draft from the head's prediction after them."""
        head, waiting = self._head, self._take(len(texts))
        counts = [len(features) for features in waiting]
        features = pad_sequence(waiting, batch_first=True)
        width = features.shape[1]
        tokens = pad_rows([text[-count:] for text, count in zip(texts, counts, strict=True)], head.device)
        window = head.windows.chain([len(text) - 1 - count for text, count in zip(texts, counts, strict=True)], width)
        found = head.forward(tokens, head.fuse(features.flatten(0, 1)), window)
        last = [row * width + count - 1 for row, count in enumerate(counts)]
        return self._builder.grow(head, found[last], [len(text) - 2 for text in texts], depth, sampling)


class HiddenStateDrafter(Drafter):
    """Base of drafters that use the hidden state from which each text's last token was predicted.

    `_hidden` [rows, hidden] has that state for each row: the output of the final norm at the second-to-last token.
    """

    aux_layers = (FINAL,)

    def __init__(self, setup: DrafterConfig) -> None:
        target, rows = setup.target, setup.room.rows
        self._hidden = torch.zeros((rows, target.config.hidden_size), device=target.device, dtype=target.dtype)
        self._rows = torch.arange(rows, device=target.device)
        self._first_row, self._ends = 0, [0]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        self._first_row, self._ends = first_row, [len(prompt) - 1 for prompt in prompts]

    def read(self, features: Tensor, start: int) -> None:
        """Store the hidden state at the end of each prompt that ends in this chunk."""
        for row, end in enumerate(self._ends):
            if start <= end < start + features.shape[1]:
                self._hidden[self._first_row + row] = features[row, end - start]

    def observe(self, outcome: VerifyOutcome) -> None:
        if outcome.features is None:
            raise ValueError("a drafter with aux_layers needs hidden states")
        rows = len(outcome.results)
        ends = torch.tensor([result.path[-1] if result.path else 0 for result in outcome.results])
        self._hidden[:rows] = outcome.features[self._rows[:rows], ends.to(self._rows.device)]

    def move_row(self, source: int, target: int, length: int) -> None:
        self._hidden[target] = self._hidden[source]


@dataclass(frozen=True)
class TreeLevel:
    """The nodes of one depth of a static tree; "above" refers to the nodes with children in the level above.

    `parents` [nodes] has each node's parent as an index into the nodes above, and `ranks` [nodes] each node's rank.
    `inner` [inner nodes] are the nodes with children, `inner_parents` their parents above, and `span` the range of
    their numbers among all inner nodes of the tree without the root. When sampling, all nodes above first sample one
    child each; `rounds` are the nodes of the previous round that sample a second child, a third and so on. `sampled`
    [nodes] is a node's index in this order. `widest` is the highest rank plus one.
    """

    parents: Tensor
    ranks: Tensor
    inner: Tensor
    inner_parents: Tensor
    span: tuple[int, int]
    rounds: list[Tensor]
    sampled: Tensor
    widest: int


@dataclass(frozen=True)
class StaticTreeShape:
    """A static tree and its levels; `inner` is the tree of the nodes with children, `inner_nodes` their numbers."""

    tree: Tree
    levels: list[TreeLevel]
    inner: Tree
    inner_nodes: Tensor

    def by_node(self, probs: list[Tensor]) -> Tensor:
        """Return the distribution of each node's children, [rows, nodes, vocab], given the `probs` of all levels."""
        inner = torch.cat(probs, 1)
        rows, _, vocab = inner.shape
        return inner.new_zeros((rows, self.tree.parents.shape[1], vocab)).index_copy_(1, self.inner_nodes, inner)


class StaticTree(TreeBuilder):
    """Builder of a static tree; each of `choices`, such as (0, 2), is a node as its path of token ranks."""

    def __init__(self, choices: Sequence[Choice], device: torch.device) -> None:
        self.scratch = len(choices)
        depth = max(map(len, choices))
        # near the end of a request the tree is truncated to a lower depth
        self._shapes = [
            _shape([choice for choice in choices if len(choice) <= at], device) for at in range(1, depth + 1)
        ]

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        shape = self._shapes[min(depth, len(self._shapes)) - 1]
        rows, above = len(features), features.unsqueeze(1)
        # the root is the token of the last pair
        window = head.windows.tree(ends, shape.inner, 1) if len(shape.levels) > 1 else None
        tokens, probs, column = [], [], 0
        for level in shape.levels:
            logits = head.logits(above.flatten(0, 1)).view(rows, above.shape[1], -1)
            if sampling is None:
                found = _ranked(logits, level)
            else:
                found, distribution = _sampled(logits, level, sampling, column)
                probs.append(head.vocabulary.spread(distribution))
            column += found.shape[1]
            tokens.append(head.vocabulary.to_target(found))
            if window is not None and len(level.inner):
                pairs = tokens[-1][:, level.inner], above[:, level.inner_parents].flatten(0, 1)
                above = head.forward(*pairs, window.part(*level.span)).view(rows, len(level.inner), -1)
        return DraftTokens(torch.cat(tokens, 1), shape.by_node(probs) if probs else None, shape.tree)


def _ranked(logits: Tensor, level: TreeLevel) -> Tensor:
    """Return each node's token [rows, nodes] by its rank in its parent's logits [rows, above, vocab]."""
    return logits.topk(level.widest, -1).indices[:, level.parents, level.ranks]


def _sampled(logits: Tensor, level: TreeLevel, sampling: DraftSampling, column: int) -> tuple[Tensor, Tensor]:
    """Sample each node's token [rows, nodes] with the uniforms from `column` on.

    Also return the distribution of the children of each node above, [rows, above, vocab]. Greedy rows have zeros there,
    because their tokens are deterministic.
    """
    distribution = sampling.params.probs(logits)
    left, found = distribution, [draw_each(sampling, distribution, column)]
    for drawing in level.rounds:
        column += found[-1].shape[1]
        taken = found[-1].index_select(1, drawing).unsqueeze(2)
        left = left.index_select(1, drawing).scatter_(2, taken, 0.0)
        found.append(draw_each(sampling, left, column))
    sampled = torch.cat(found, 1)[:, level.sampled]
    if not sampling.params.mixed:
        return sampled, distribution
    greedy = sampling.params.greedy.unsqueeze(1)
    return torch.where(greedy, _ranked(logits, level), sampled), distribution.masked_fill(greedy.unsqueeze(2), 0.0)


def draw_each(sampling: DraftSampling, weights: Tensor, column: int) -> Tensor:
    """Return tokens [rows, n] sampled from weights [rows, n, vocab], with one uniform each from `column` on."""
    rows, count, _ = weights.shape
    uniforms = sampling.uniforms[:, column : column + count]
    return pick(weights.flatten(0, 1), uniforms.flatten()).view(rows, count)


def _shape(choices: Sequence[Choice], device: torch.device) -> StaticTreeShape:
    nodes = in_node_order(choices)
    with_children = {choice[:-1] for choice in nodes}
    inner = [choice for choice in nodes if choice in with_children]
    levels = []
    for depth in range(1, len(nodes[-1]) + 1):
        here = [choice for choice in nodes if len(choice) == depth]
        above = [choice for choice in [(), *inner] if len(choice) == depth - 1]
        levels.append(_level(here, above, inner, device))
    numbers = torch.tensor([0, *(nodes.index(choice) + 1 for choice in inner)], device=device)
    return StaticTreeShape(Tree.from_choices(nodes), levels, Tree.from_choices(inner), numbers)


def _level(nodes: list[Choice], above: list[Choice], with_children: list[Choice], device: torch.device) -> TreeLevel:
    def indices(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    parents = [above.index(choice[:-1]) for choice in nodes]
    inner = [number for number, choice in enumerate(nodes) if choice in with_children]
    first = sum(len(choice) < len(nodes[0]) for choice in with_children)
    families = [[number for number, parent in enumerate(parents) if parent == node] for node in range(len(above))]
    rounds, order, before = [], [], list(range(len(above)))
    for turn in range(max(map(len, families))):
        drawing = [parent for parent in before if len(families[parent]) > turn]
        rounds.append(indices([before.index(parent) for parent in drawing]))
        order += [families[parent][turn] for parent in drawing]
        before = drawing
    return TreeLevel(
        parents=indices(parents),
        ranks=indices([choice[-1] for choice in nodes]),
        inner=indices(inner),
        inner_parents=indices([parents[number] for number in inner]),
        span=(first, first + len(inner)),
        rounds=rounds[1:],
        sampled=indices([order.index(number) for number in range(len(nodes))]),
        widest=1 + max(choice[-1] for choice in nodes),
    )


@dataclass(frozen=True)
class Frontier:
    """The nodes of a level that are extended, as tensors [rows, n, ...].

    `features` are the head's features after these nodes, `scores` the log probabilities of their paths, and `ranked`
    their indices among all ranked tokens, -1 for the root.
    """

    features: Tensor
    scores: Tensor
    ranked: Tensor


@dataclass(frozen=True)
class RankedTokens:
    """Tokens [rows, n] ranked after a frontier, by node, best first; `parents` are the nodes' `ranked` values."""

    tokens: Tensor
    scores: Tensor
    parents: Tensor


class DynamicTree(TreeBuilder):
    """Builder of dynamic trees: the `nodes` best tokens of `levels` levels, with `top_k` tokens ranked per node."""

    def __init__(self, top_k: int, levels: int, nodes: int) -> None:
        self._top_k, self._levels, self._nodes = top_k, levels, nodes
        self.scratch = top_k * levels

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return the tree of all levels; `depth` is ignored, because a row's draft must not depend on other rows."""
        rows = len(features)
        frontier = Frontier(
            features.unsqueeze(1),
            torch.zeros((rows, 1), device=head.device),
            torch.full((rows, 1), -1, device=head.device),
        )
        levels = [self._rank(head, frontier)]
        # the root is the token of the last pair
        next_level = head.windows.growing(ends, self._top_k, self._levels - 1)
        before = 0
        for _ in range(1, self._levels):
            frontier = self._advance(head, frontier, levels[-1], before, next_level)
            before += levels[-1].tokens.shape[1]
            levels.append(self._rank(head, frontier))
        return self._best(levels)

    def _rank(self, head: FeatureHead, frontier: Frontier) -> RankedTokens:
        logits = head.logits(frontier.features.flatten(0, 1)).view(*frontier.scores.shape, -1)
        best = torch.log_softmax(logits.float(), -1).topk(self._top_k, -1)
        return RankedTokens(
            tokens=head.vocabulary.to_target(best.indices).flatten(1),
            scores=(frontier.scores.unsqueeze(2) + best.values).flatten(1),
            parents=frontier.ranked.unsqueeze(2).expand_as(best.indices).flatten(1),
        )

    def _advance(
        self, head: FeatureHead, frontier: Frontier, ranked: RankedTokens, before: int, next_level: NextLevel
    ) -> Frontier:
        """Return the frontier of the last level's best tokens; `before` tokens were ranked in earlier levels."""
        best = _best_indices(ranked.scores, self._top_k)
        parents = best // self._top_k
        features = frontier.features.gather(1, parents.unsqueeze(2).expand(-1, -1, frontier.features.shape[2]))
        passed = head.forward(ranked.tokens.gather(1, best), features.flatten(0, 1), next_level(parents))
        return Frontier(passed.view_as(features), ranked.scores.gather(1, best), before + best)

    def _best(self, levels: list[RankedTokens]) -> DraftTokens:
        """Return the draft of the best tokens of all levels, in the order in which they were ranked."""
        tokens = torch.cat([level.tokens for level in levels], 1)
        scores = torch.cat([level.scores for level in levels], 1)
        parents = torch.cat([level.parents for level in levels], 1)
        best = _best_indices(scores, self._nodes).sort(1).values
        count = best.shape[1]
        # one extra entry, so that index -1 gives the root's number, 0
        numbers = torch.zeros((len(tokens), tokens.shape[1] + 1), dtype=torch.int64, device=tokens.device)
        numbers.scatter_(1, best, torch.arange(1, count + 1, device=tokens.device).expand(len(tokens), -1))
        above = numbers.gather(1, parents.gather(1, best) % numbers.shape[1])
        root = np.full((len(tokens), 1), -1)
        return DraftTokens(tokens.gather(1, best), tree=Tree(np.concatenate([root, above.cpu().numpy()], 1)))


def _best_indices(scores: Tensor, count: int) -> Tensor:
    """Return the indices [rows, count] of the highest scores [rows, n]; of equal scores, the first ones."""
    return scores.argsort(stable=True, dim=1, descending=True)[:, :count]
