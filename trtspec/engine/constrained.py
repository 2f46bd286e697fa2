# SPDX-License-Identifier: Apache-2.0
"""Drafts and logits under the grammars of constrained requests.

The target's logits after each drafted token are masked by the state of the grammar after that token, so verification
has the same result as with constrained decoding of the target alone. Before the pass of the target, a chain is cut
where the grammar forbids its next token, and gets the tokens that the grammar forces.

Whether a forced token replaces a drafted one depends only on the state of the grammar, not on the drafted token. A
sampled token that is forbidden stays the last of its chain: its rejection samples from the residual, which cutting it
would not. Both are required for the target's distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from trtspec.engine.drafting.base import DraftTokens
from trtspec.engine.generation.grammar import Bits, GrammarMatcher
from trtspec.engine.generation.request_state import RunningRequest
from trtspec.kernels.tree import Tree

GRAMMAR_LOGIT = -2e30  # below the logit of tokens that a request's edits forbid: the grammar takes precedence


@dataclass
class RowMasks:
    """The allowed tokens after some nodes of one row: `bits` [words of 32 tokens] for each of `nodes`."""

    nodes: list[int] = field(default_factory=list)
    bits: list[Bits] = field(default_factory=list)

    def add(self, node: int, matcher: GrammarMatcher, vocab_size: int) -> None:
        """Store the tokens that the matcher allows now."""
        bits = np.zeros((vocab_size + 31) // 32, np.int32)
        matcher.fill(bits)
        self.nodes.append(node)
        self.bits.append(bits)

    def allows(self, token: int) -> bool:
        """Return whether a token may follow the last node."""
        return bool(self.bits[-1][token // 32] >> token % 32 & 1)

    def apply(self, logits: Tensor) -> None:
        """Set the logits [nodes, vocab] of forbidden tokens to GRAMMAR_LOGIT."""
        packed = np.stack(self.bits).view(np.uint8)
        allowed = np.unpackbits(packed, axis=1, count=logits.shape[1], bitorder="little")
        forbidden = torch.from_numpy(allowed == 0).to(logits.device)
        nodes = torch.tensor(self.nodes, device=logits.device)
        logits[nodes] = logits[nodes].masked_fill(forbidden, GRAMMAR_LOGIT)


Masks = dict[int, RowMasks]  # by row


@dataclass
class _Chain:
    """A row's chain: its tokens, the positions of forced tokens, and how many leading tokens the drafter proposed."""

    tokens: list[int] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    own: int = 0
    masks: RowMasks = field(default_factory=RowMasks)


def constrained_rows(batch: Sequence[RunningRequest]) -> list[int]:
    return [row for row, running in enumerate(batch) if running.matcher is not None]


def constrain_chains(
    batch: Sequence[RunningRequest], rows: Sequence[int], draft: DraftTokens, limits: Sequence[int], vocab_size: int
) -> tuple[DraftTokens, Masks, list[int]]:
    """Return chains that fit the grammars of `rows`, the masks, and each row's number of tokens that are the drafter's.

    The other rows' chains stay the same. `limits` are the maximum lengths of the chains.
    """
    width = draft.tokens.shape[1]
    lens = [min(pair) for pair in zip(limits, draft.lens or [width] * len(limits), strict=True)]
    own, tokens, masks = list(lens), draft.tokens.tolist(), Masks()
    chains: dict[int, _Chain] = {}
    for row in rows:
        samples = draft.probs is not None and batch[row].samples
        chain = _walk(_matcher(batch[row]), tokens[row][: lens[row]], limits[row], vocab_size, samples=samples)
        chains[row], masks[row] = chain, chain.masks
        lens[row], own[row] = len(chain.tokens), chain.own
    return _with_chains(draft, chains, lens), masks, own


def _walk(matcher: GrammarMatcher, own: Sequence[int], limit: int, vocab_size: int, *, samples: bool) -> _Chain:
    """Return a row's chain of at most `limit` tokens from its drafted tokens, whose state the matcher keeps.

    With `samples`, the tokens were sampled, and a forbidden token ends the chain instead of being cut.
    """
    chain, pushed, is_own = _Chain(), 0, True
    with matcher.guarded():
        forced: list[int] = []
        while True:
            at = len(chain.tokens)
            chain.masks.add(at, matcher, vocab_size)
            forced = forced or matcher.forced()
            if at == limit or not (forced or (is_own and at < len(own))):
                break
            token = forced[0] if forced else own[at]
            is_own = is_own and at < len(own) and token == own[at]
            fits = chain.masks.allows(token)
            if not (fits or samples):
                break
            chain.tokens.append(token)
            chain.own += is_own
            if not fits or not matcher.push(token):  # rejected for sure, or the end of the text
                break
            pushed += 1
            if forced:
                chain.forced.append(at)
                forced = forced[1:]
        matcher.pop(pushed)
    return chain


def _with_chains(draft: DraftTokens, chains: dict[int, _Chain], lens: list[int]) -> DraftTokens:
    """Return a draft in which some rows have other chains, as wide as the longest chain of `lens`."""
    width, before = max(lens), draft.tokens.shape[1]
    kept = min(width, before)
    tokens = draft.tokens.new_zeros((len(lens), width))
    tokens[:, :kept] = draft.tokens[:, :kept]
    for row, chain in chains.items():
        tokens[row, : len(chain.tokens)] = tokens.new_tensor(chain.tokens)
    probs = draft.probs
    if probs is not None:
        probs = probs.new_zeros((len(lens), width, probs.shape[2]))
        probs[:, :kept] = draft.probs[:, :kept]  # type: ignore[index]  # it is not None
        for row, chain in chains.items():
            probs[row, chain.forced] = 0.0
            probs[row, chain.forced, tokens[row, chain.forced]] = 1.0
    return replace(draft, tokens=tokens, probs=probs, lens=lens)


def chain_masks(
    batch: Sequence[RunningRequest], rows: Iterable[int], drafts: Sequence[Sequence[int]], vocab_size: int
) -> Masks:
    """Return the masks along chains that must stay as they are, such as external drafts."""
    masks = Masks()
    for row in rows:
        tree = Tree(np.arange(-1, len(drafts[row]), dtype=np.int64)[None])
        masks[row] = _tree_masks(_matcher(batch[row]), [0, *drafts[row]], tree.children[0], vocab_size)
    return masks


def tree_masks(
    batch: Sequence[RunningRequest], rows: Iterable[int], tokens: Tensor, tree: Tree, vocab_size: int
) -> Masks:
    """Return the masks after all nodes of the trees of `tokens` [rows, nodes] that the grammars allow."""
    masks, ids = Masks(), tokens.tolist()
    for row in rows:
        children = tree.children[row % len(tree.children)]
        masks[row] = _tree_masks(_matcher(batch[row]), ids[row], children, vocab_size)
    return masks


def _tree_masks(
    matcher: GrammarMatcher, tokens: Sequence[int], children: Sequence[Sequence[int]], vocab_size: int
) -> RowMasks:
    masks = RowMasks()

    def visit(node: int) -> None:
        masks.add(node, matcher, vocab_size)
        allowed = [child for child in children[node] if masks.allows(tokens[child])]
        for child in allowed:
            if matcher.push(tokens[child]):
                visit(child)
                matcher.pop(1)

    with matcher.guarded():
        visit(0)
    return masks


def _matcher(running: RunningRequest) -> GrammarMatcher:
    if running.matcher is None:
        raise ValueError("the request has no constraint")
    return running.matcher


def mask_logits(logits: Tensor, masks: Masks) -> Tensor:
    """Return logits [rows, nodes, vocab] with the masks applied, in float32 or more; the input stays unchanged."""
    masked = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for row, own in masks.items():
        if own.nodes:
            own.apply(masked[row])
    return masked
