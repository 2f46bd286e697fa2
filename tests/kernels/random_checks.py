# SPDX-License-Identifier: Apache-2.0
"""Random batches compared with torch, with the cumulative distribution of whole vocabularies, and with each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tests.kernels import reference
from tests.kernels.batches import NAN, ChainRule, TreeRule, outcomes, pick, uniform_bits
from trtspec.kernels import chain, tree
from trtspec.kernels.bit_exact import ChainBatch, DraftKind, Mode, TreeBatch
from trtspec.kernels.bit_exact.batch import VerifyBatch
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams


def random_chains(seed: int, sampled: bool, rows: int = 24, draft_len: int = 4) -> ChainBatch:
    """Return chains of different lengths; some requests are greedy, others use different sampling parameters."""
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(3, 40))
    target = (rng.normal(size=(rows, draft_len + 1, vocab)) * 2).astype(np.float32)
    draft = (target[:, :-1] + rng.normal(size=(rows, draft_len, vocab))).astype(np.float32)
    how = sampling(rows)
    tokens = np.zeros((rows, draft_len), dtype=np.int32)
    for row, position in np.ndindex(rows, draft_len):
        settings = (float(how["temperature"][row]), int(how["top_k"][row]), float(how["top_p"][row]))
        tokens[row, position] = rng.choice(
            vocab, p=reference.sampling_probs(draft[row, position].astype(np.float64), *settings)
        )
    return ChainBatch(
        target=target,
        tokens=tokens,
        draft=draft if sampled else None,
        lengths=rng.integers(0, draft_len + 1, rows).astype(np.int32),
        uniforms=uniform_bits(rng.random((rows, draft_len + 1))),
        **how,
    )


def sampling(rows: int) -> dict[str, np.ndarray]:
    """Return a temperature, top_k and top_p for each request; every fourth is greedy."""
    row = np.arange(rows)
    return {
        "temperature": np.where(row % 4 == 0, 0.0, 0.5 + row / rows).astype(np.float32),
        "top_k": (row % 3 * 4).astype(np.int32),
        "top_p": np.where(row % 2 == 0, 1.0, 0.85).astype(np.float32),
    }


def params_of(batch: VerifyBatch) -> SamplingParams:
    """Return the torch sampling parameters of a batch."""
    return SamplingParams(
        *(torch.from_numpy(values) for values in (batch.temperature, batch.top_k, batch.top_p)), truncates=True
    )


TorchRule = Callable[..., list[VerifyResult]]


def chains_by_torch(rule: TorchRule, batch: ChainBatch, uniforms: torch.Tensor) -> list[VerifyResult]:
    """Return the results of the engine's torch rules for chains."""
    params, lens = params_of(batch), batch.lengths.tolist()
    draft = None if batch.draft is None else params.probs(torch.from_numpy(batch.draft))
    tokens = torch.from_numpy(batch.tokens).long()
    return rule(torch.from_numpy(batch.target), tokens, lens, params, draft, uniforms)


def away_from_edges(
    results: Callable[[torch.Tensor], list[VerifyResult]], batch: VerifyBatch
) -> list[VerifyResult | None]:
    """Return the results of a rule at a batch's uniforms, or None for those that depend on float32 rounding.

    All decisions are monotone in their uniform, so equal results on both sides imply the same result between.
    """
    uniforms = torch.from_numpy(batch.uniforms * 2.0**-32)
    below, above = (results((uniforms + step).clamp(0.0, 1.0 - 2.0**-32)) for step in (-2e-5, 2e-5))
    return [low if low == high else None for low, high in zip(below, above, strict=True)]


def check_torch_says_the_same_of_chains(sampled: bool, verify: ChainRule, rule: TorchRule = chain.verify_chain) -> None:
    """Random chains, except those that torch decides by rounding."""
    compared, lengths = 0, set()
    for seed in range(20):
        batch = random_chains(seed, sampled)
        expected = away_from_edges(partial(chains_by_torch, rule, batch), batch)
        for (accepted, token, status), result in zip(outcomes(verify, batch), expected, strict=True):
            assert result is None or (len(accepted), token, status) == (len(result.path), result.token, 0)
            compared += result is not None
            lengths.add(len(accepted))
    assert compared > 470, compared
    assert lengths == {0, 1, 2, 3, 4}


def check_a_request_says_the_same_in_every_batch(
    random: Callable[[int], VerifyBatch], verify: ChainRule | TreeRule
) -> None:
    """A request alone, in another order, and with other requests."""
    batch = random(11)
    together, rows = outcomes(verify, batch), len(batch.tokens)
    assert [outcomes(verify, pick(batch, [row]))[0] for row in range(rows)] == together
    order = np.random.default_rng(0).permutation(rows)
    assert outcomes(verify, pick(batch, order)) == [together[row] for row in order]
    assert outcomes(verify, pick(batch, np.repeat(order[:3], 9))) == [together[row] for row in np.repeat(order[:3], 9)]


def check_whole_vocabularies(vocab: int, verify: ChainRule, samples: int = 64) -> None:
    """Compare the first token's distribution for a model's whole vocabulary by the cumulative distribution and
    chi-square.

    Drafts are sampled from another distribution than the target's, so that about half of the tokens are replaced. Bins
    are consecutive ids of equal mass. The statistic is within 6 deviations.
    """
    rng = np.random.default_rng(vocab)
    target = (rng.normal(size=vocab) * 2).astype(np.float32)
    draft = (target + rng.normal(size=vocab)).astype(np.float32)
    distribution, proposal = (reference.sampling_probs(row.astype(np.float64), 1.0, 0, 1.0) for row in (target, draft))
    upto = np.cumsum(distribution)
    uniforms = rng.integers(0, 2**32, (samples, 2), dtype=np.uint64).astype(np.uint32)
    check_inverse_distribution(verify, target, upto, uniforms[:16, 1])
    tokens = rng.choice(vocab, samples, p=proposal / proposal.sum()).astype(np.int32)
    first, accepted = first_tokens(verify, target, draft, tokens, uniforms)
    assert 0.2 < accepted < 0.95, accepted
    bins = 8
    counts = np.bincount(np.minimum((upto[first] * bins).astype(int), bins - 1), minlength=bins)
    masses = np.bincount(np.minimum((upto * bins).astype(int), bins - 1), weights=distribution, minlength=bins)
    statistic = ((counts - samples * masses) ** 2 / (samples * masses)).sum()
    assert statistic < bins - 1 + 6 * np.sqrt(2 * (bins - 1)), f"chi-square {statistic:.1f}"


def check_inverse_distribution(verify: ChainRule, logits: np.ndarray, upto: np.ndarray, uniforms: np.ndarray) -> None:
    """The token drawn at a uniform is where the cumulative distribution passes it, to 1e-6."""
    points = uniforms * 2.0**-32
    for uniform, point in zip(uniforms, points, strict=True):
        batch = ChainBatch(target=logits[None, None], tokens=np.zeros((1, 0), np.int32), uniforms=uniform[None, None])
        (_, token, _) = outcomes(verify, batch)[0]
        assert (upto[token - 1] if token else 0.0) - 1e-6 <= point <= upto[token] + 1e-6


def first_tokens(
    verify: ChainRule, target: np.ndarray, draft: np.ndarray, tokens: np.ndarray, uniforms: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the first token of each request's text, and how many of them were accepted."""
    first, accepted, at_once = [], 0, 32
    for begin in range(0, len(tokens), at_once):
        part = slice(begin, begin + at_once)
        rows = len(tokens[part])
        batch = ChainBatch(
            target=np.broadcast_to(target, (rows, 2, len(target))),
            tokens=tokens[part, None],
            draft=np.broadcast_to(draft, (rows, 1, len(draft))),
            uniforms=uniforms[part],
        )
        for path, token, status in outcomes(verify, batch):
            assert status == 0
            first.append(path[0] if path else token)
            accepted += len(path)
    return np.array(first), accepted / len(tokens)


def check_a_tree_of_one_branch_is_a_chain(verify_tree: TreeRule, verify_chain: ChainRule) -> None:
    """With the same uniforms; the root's is used for the next token."""
    lengths = set()
    for seed in range(5):
        batch = random_chains(seed, sampled=True)
        rows, draft_len = batch.tokens.shape
        as_tree = TreeBatch(
            target=batch.target,
            tokens=np.pad(batch.tokens, ((0, 0), (1, 0))),
            parents=np.tile(np.arange(-1, draft_len, dtype=np.int32), (rows, 1)),
            draft=np.pad(batch.draft, ((0, 0), (0, 1), (0, 0))),
            limits=batch.lengths,
            uniforms=np.roll(batch.uniforms, 1, axis=1),
            mode=Mode.SAMPLED,
            **{name: getattr(batch, name) for name in ("temperature", "top_k", "top_p")},
        )
        trees, chains = outcomes(verify_tree, as_tree), outcomes(verify_chain, batch)
        assert [(len(path), token) for path, token, _ in trees] == [(len(path), token) for path, token, _ in chains]
        lengths |= {len(path) for path, _, _ in trees}
    assert lengths == {0, 1, 2, 3, 4}


def random_trees(seed: int, mode: Mode, rows: int = 16, nodes: int = 12) -> TreeBatch:
    """Return trees of random shapes, siblings drawn without replacement; some requests are greedy."""
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(nodes, 3 * nodes))
    parents = np.array([[random_parent(rng, node) for node in range(nodes)] for _ in range(rows)], dtype=np.int32)
    target = (rng.normal(size=(rows, nodes, vocab)) * 2).astype(np.float32)
    near = target + rng.normal(size=(rows, nodes, vocab)) * 0.5
    distribution = np.array([[reference.sampling_probs(row, 1.0, 0, 1.0) for row in of] for of in near]).astype(
        np.float32
    )
    tokens = np.zeros((rows, nodes), dtype=np.int32)
    for row, node in np.ndindex(rows, nodes):
        children = np.flatnonzero(parents[row] == node)
        weights = distribution[row, node].astype(np.float64)
        tokens[row, children] = rng.choice(vocab, len(children), replace=False, p=weights / weights.sum())
    return TreeBatch(
        target=target,
        tokens=tokens,
        parents=parents,
        draft=distribution,
        draft_kind=DraftKind.PROBABILITIES,
        limits=rng.integers(0, 6, rows).astype(np.int32),
        uniforms=uniform_bits(rng.random((rows, nodes))),
        mode=mode,
        **sampling(rows),
    )


def random_parent(rng: np.random.Generator, node: int) -> int:
    """Return a preceding node, preferably a low one, or sometimes none."""
    return -1 if node == 0 or rng.random() < 0.1 else int(rng.integers(0, node) * rng.random())


def trees_by_torch(batch: TreeBatch, uniforms: torch.Tensor) -> list[VerifyResult]:
    """Return the results of the engine's torch rules for trees."""
    shape = tree.Tree(batch.parents.astype(np.int64))
    tokens, sampled = torch.from_numpy(batch.tokens).long(), batch.mode == Mode.SAMPLED
    draft = torch.from_numpy(batch.draft.astype(np.float64)) if sampled else None
    typical = tree.TypicalAcceptance(batch.threshold, batch.alpha) if batch.mode == Mode.TYPICAL else None
    logits = torch.from_numpy(batch.target)
    return tree.verify_tree(logits, tokens, shape, batch.limits.tolist(), params_of(batch), draft, uniforms, typical)


def check_torch_says_the_same_of_trees(mode: Mode, verify: TreeRule) -> None:
    """Random trees, except those that torch decides by rounding."""
    compared, lengths = 0, set()
    for seed in range(20):
        batch = random_trees(seed, mode)
        expected = away_from_edges(partial(trees_by_torch, batch), batch)
        for (path, token, status), result in zip(outcomes(verify, batch), expected, strict=True):
            assert result is None or (path, token, status) == (result.path, result.token, 0)
            compared += result is not None
            lengths.add(len(path))
    assert compared > 310, compared
    assert lengths >= {0, 1, 2, 3}


def check_padding_and_half_precision(verify: ChainRule) -> None:
    """Padding after the vocabulary is not read, and float16 logits have their exact values."""
    batch = random_chains(5, sampled=False)
    padded = np.full((*batch.target.shape[:2], batch.target.shape[2] + 11), NAN, dtype=np.float32)
    view = padded[..., : batch.target.shape[2]]
    view[...] = batch.target
    assert outcomes(verify, replace(batch, target=view)) == outcomes(verify, batch)
    half = batch.target.astype(np.float16)
    assert outcomes(verify, replace(batch, target=half)) == outcomes(
        verify, replace(batch, target=half.astype(np.float32))
    )
