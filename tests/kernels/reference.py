# SPDX-License-Identifier: Apache-2.0
"""The acceptance rules of speculative sampling in numpy and float64: the reference for every faster implementation.

Chain (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318): the drafted token x at a position
is accepted when u * draft_probs[x] < target_probs[x]. At the first rejection the next token is sampled from
max(target_probs - draft_probs, 0), renormalised. When all are accepted, it is sampled from the target's row after the
last one.

Block (Sun et al. 2024, arXiv:2403.10444, algorithm 2): a chain is accepted as a whole. `kept` is the share of a
prefix's draft probability that its target probability covers, clipped to 1 after each token, so that a surplus of one
token can compensate a deficit of a later one. Each prefix is accepted with its own probability, and the longest
accepted prefix wins. The next token is sampled from the target's remaining mass there. No exact rule accepts more
tokens on average. A drafter may decide where a chain ends by its distributions and the previous tokens: then each
prefix has only one way to end.

Tree of sampled tokens (SpecInfer, arXiv:2305.09781; without replacement: Sequoia, arXiv:2402.12374): the same rule is
applied at every node to one child after the other. After a rejection the residual replaces the target, and the next
child counts as sampled from the draft without the tokens of its earlier siblings.

Tree of deterministic tokens: sample the target's token at a node; if a child has it, that child is accepted. This is
the rule above with one-hot draft_probs for each child: the first is accepted with its probability a, the second, tested
against the residual, with (1 - a) * b / (1 - a) = b, and so on.

With these rules the output has exactly the target's distribution, whatever the draft; `verify_typical` is lossy.
Uniforms are arguments, so that implementations can be compared token by token. The code uses plain loops for
readability. A tree is `parents` [nodes]: node 0 is the root, parents precede children, the root and unused nodes have
-1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trtspec.kernels.chain import VerifyResult

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def sampling_probs(logits: Floats, temperature: float, top_k: int, top_p: float) -> Floats:
    """Return the probabilities [vocab] that a request samples from.

    Temperature 0 is greedy: all mass on the largest logit, the lowest id among equals. Otherwise the temperature is
    applied, then the `top_k` most probable tokens are kept (0 = all), then the smallest set of them with `top_p` of
    their mass; among equal probabilities lower ids come first.
    """
    if temperature == 0.0:
        one_hot = np.zeros(len(logits))
        one_hot[np.argmax(logits)] = 1.0
        return one_hot
    probs: Floats = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-probs, kind="stable")
    if top_k:
        probs[order[top_k:]] = 0.0
    probs = probs / probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= top_p]] = 0.0
    kept: Floats = probs / probs.sum()
    return kept


def pick(weights: Floats, uniform: float) -> int:
    """Return the token at `uniform` of the cumulative weights [vocab], which need not be normalised.

    A token of weight zero is never returned.
    """
    cumulated = np.cumsum(weights)
    beyond = np.flatnonzero(cumulated > uniform * cumulated[-1])
    return int(beyond[0]) if len(beyond) else int(np.flatnonzero(weights)[-1])


def verify_chain(target_probs: Floats, draft_probs: Floats | None, tokens: Ints, uniforms: Floats) -> VerifyResult:
    """Verify one request's chain.

    Args:
        target_probs: [draft_len + 1, vocab], the target's row at each drafted position and after the last.
        draft_probs: [draft_len, vocab], the distribution of each drafted token, or None for deterministic tokens.
        tokens: [draft_len].
        uniforms: [draft_len + 1] in [0, 1): one per drafted token, then one for the next token.
    """
    path: list[int] = []
    for position, token in enumerate(tokens):
        target = target_probs[position]
        proposal = one_hot(token, target) if draft_probs is None else draft_probs[position]
        if not accepts(target, proposal, token, uniforms[position]):
            return VerifyResult(path, pick(residual(target, proposal), uniforms[-1]))
        path.append(position + 1)
    return VerifyResult(path, pick(target_probs[-1], uniforms[-1]))


def verify_deterministic(
    target_probs: Floats, tokens: Ints, parents: Ints, limit: int, uniforms: Floats
) -> VerifyResult:
    """Verify one request's tree of deterministic tokens.

    Args:
        target_probs: [nodes, vocab], the target's row after each node.
        tokens: [nodes]; the root's is ignored.
        parents: [nodes].
        limit: the maximum number of accepted tokens.
        uniforms: [nodes] in [0, 1): a node's uniform samples the token after it.
    """
    node = 0
    path: list[int] = []
    while True:
        token = pick(target_probs[node], uniforms[node])
        agreeing = [child for child in children(parents, node) if tokens[child] == token]
        if not agreeing or len(path) == limit:
            return VerifyResult(path, token)
        node = agreeing[0]
        path.append(node)


def verify_sampled(
    target_probs: Floats, draft_probs: Floats, tokens: Ints, parents: Ints, limit: int, uniforms: Floats
) -> VerifyResult:
    """Verify one request's tree whose siblings were sampled without replacement.

    Args:
        target_probs: [nodes, vocab], the target's row after each node.
        draft_probs: [nodes, vocab], the distribution of each node's children, which were sampled in node order;
            children without remaining weight count as deterministic.
        tokens: [nodes]; the root's is ignored.
        parents: [nodes].
        limit: the maximum number of accepted tokens.
        uniforms: [nodes] in [0, 1): a node's uniform accepts it, the root's samples the next token.
    """
    node = 0
    path: list[int] = []
    target, draft = target_probs[0], draft_probs[0]
    untested = children(parents, 0)
    while untested and len(path) < limit:
        child = untested.pop(0)
        token = tokens[child]
        proposal = draft / draft.sum() if draft.sum() > 0.0 else one_hot(token, draft)
        if accepts(target, proposal, token, uniforms[child]):
            node = child
            path.append(node)
            target, draft = target_probs[node], draft_probs[node]
            untested = children(parents, node)
        else:
            target, draft = residual(target, proposal), without(draft, token)
    return VerifyResult(path, pick(target, uniforms[0]))


def verify_typical(
    target_probs: Floats, tokens: Ints, parents: Ints, limit: int, uniform: float, threshold: float, alpha: float
) -> VerifyResult:
    """Verify one request's tree by typical acceptance (Medusa, arXiv:2401.10774, section 2.3.1), which is lossy.

    A child is accepted when the target's probability of its token exceeds min(threshold, alpha * exp(-entropy)). The
    longest accepted path wins, the first in node order among equals; `uniform` samples the next token after it.
    """
    best: list[int] = []
    paths: dict[int, list[int]] = {0: best}
    for node, parent in enumerate(parents):
        if parent not in paths or len(paths[parent]) == limit:
            continue
        target = target_probs[parent]
        entropy = -sum(prob * np.log(prob) for prob in target if prob > 0.0)
        if target[tokens[node]] > min(threshold, alpha * np.exp(-entropy)):
            paths[node] = [*paths[parent], node]
            best = max(best, paths[node], key=len)
    return VerifyResult(best, pick(target_probs[best[-1] if best else 0], uniform))


def children(parents: Ints, node: int) -> list[int]:
    """Return a node's children in node order."""
    return [child for child, parent in enumerate(parents) if parent == node]


def accepts(target: Floats, proposal: Floats, token: int, uniform: float) -> bool:
    """Return whether a token sampled from `proposal` [vocab] is accepted.

    The comparison is strict, so that uniform 0 does not accept a token of probability 0.
    """
    return bool(uniform * proposal[token] < target[token])


def residual(target: Floats, proposal: Floats) -> Floats:
    """Return the distribution [vocab] after a rejection; the target's if no mass is left."""
    rest = np.maximum(target - proposal, 0.0)
    return rest / rest.sum() if rest.sum() > 0.0 else target


def without(draft: Floats, token: int) -> Floats:
    """Return the weights [vocab] with the weight of a token set to 0."""
    rest = draft.copy()
    rest[token] = 0.0
    return rest


def one_hot(token: int, like: Floats) -> Floats:
    """Return the one-hot distribution [vocab] of a token."""
    distribution = np.zeros_like(like)
    distribution[token] = 1.0
    return distribution


def verify_block(target_probs: Floats, draft_probs: Floats | None, tokens: Ints, uniforms: Floats) -> VerifyResult:
    """Verify one request's chain; same arguments as `verify_chain`."""
    kept, best, left = 1.0, 0, target_probs[0]
    for position, token in enumerate(tokens):
        proposal = proposal_at(draft_probs, position, token, target_probs)
        if not position:
            left = surplus(1.0, target_probs[0], proposal)
        kept = cover(kept * target_probs[position, token], proposal[token])
        after = target_probs[position + 1]
        rest, chance = after, kept
        if position + 1 < len(tokens):
            following = proposal_at(draft_probs, position + 1, tokens[position + 1], target_probs)
            rest = surplus(kept, after, following)
            chance = chance_of(rest.sum(), kept)
        if uniforms[position] < chance:
            best, left = position + 1, rest
    after = target_probs[best]
    return VerifyResult(list(range(1, best + 1)), pick(left if left.sum() > 0.0 else after, uniforms[-1]))


def proposal_at(draft_probs: Floats | None, position: int, token: int, like: Floats) -> Floats:
    """Return the distribution [vocab] of a drafted token; one-hot for a deterministic token."""
    return one_hot(token, like[0]) if draft_probs is None else draft_probs[position]


def cover(target: float, draft: float) -> float:
    """Return the share of a prefix's draft mass that the target covers, at most 1; 0 if the target's mass is 0."""
    return 1.0 if target >= draft and target > 0.0 else float(target / draft) if target > 0.0 else 0.0


def surplus(kept: float, target: Floats, proposal: Floats) -> Floats:
    """Return the target's mass [vocab] in excess of the draft's after a prefix with the share `kept`."""
    return np.maximum(kept * target - proposal, 0.0)


def chance_of(surplus_mass: float, kept: float) -> float:
    """Return the probability that a prefix is accepted unless a longer one is; 1 without any mass."""
    total = surplus_mass + (1.0 - kept)
    return float(surplus_mass / total) if total > 0.0 else 1.0
