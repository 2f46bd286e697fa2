# SPDX-License-Identifier: Apache-2.0
"""Checks for every method: greedy text equals transformers', and sampled text has exactly the target's distribution.

The distribution is enumerated, without statistics: the engine's run is repeated for every outcome of its random draws,
where a draw is a drafted token or the whole result of verification. The possible results and their probabilities are
found by calling the verifier itself, with one uniform from every interval on which its result is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tests._support.tiny import SHAPE
from tests.kernels import reference
from trtspec.engine.drafting.base import DraftSampling
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams
from trtspec.kernels.tree import Tree

T = TypeVar("T")

LEAST_WEIGHT = 1e-9
NEW_TOKENS = 32

# Targets with properties that can break a drafter; keyword arguments of tests._support.tiny.make_model.
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"family": "llama"},
    "tied": {"family": "llama", "tie_word_embeddings": True},
    "one-kv-head": {"family": "llama", "num_key_value_heads": 1, "num_hidden_layers": 4},
    "qwen3": {"family": "qwen3", "num_hidden_layers": 3},
}
# A target whose texts can be enumerated.
DISTRIBUTION_SHAPE = {
    "family": "llama", "vocab_size": 3, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "scale": 0.5,
}  # fmt: skip


def by_position(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the accepted tokens at each draft position, for steps with these numbers of accepted tokens."""
    return tuple(sum(length > place for length in lengths) for place in range(max(lengths, default=0)))


def random_prompts(count: int, vocab: int = SHAPE["vocab_size"], seed: int = 7) -> list[tuple[int, ...]]:
    """Return prompts of 1 to 29 random tokens."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, vocab, rng.integers(1, 30)).tolist()) for _ in range(count)]


def assert_greedy_text(engine: Engine, model: Any, new_tokens: int = NEW_TOKENS) -> list[Stats]:
    """Compare the engine's text of 8 prompts with transformers', alone and in a batch of different progress."""
    prompts = random_prompts(8)
    lengths = [new_tokens + 3 * number for number in range(8)]  # rows leave the batch one by one
    requests = [EngineRequest(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    alone = [engine.generate([request])[0] for request in requests]
    together = engine.generate(requests)
    assert together == alone
    for prompt, length, result in zip(prompts, lengths, alone, strict=True):
        assert len(result.ids) == length
        assert list(result.ids) == choices_along(model, prompt, result.ids)
    return [result.stats for result in alone]


def choices_along(model: Any, prompt: Sequence[int], text: Sequence[int]) -> list[int]:
    """Return the greedy choice of transformers' model at the position of each token of a text."""
    chosen: list[int] = logits_along(model, prompt, text).argmax(-1).tolist()
    return chosen


@torch.inference_mode()
def logits_along(model: Any, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """Return the logits [len(text), vocab] of transformers' model for each token of a text, in one pass."""
    logits: np.ndarray = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1].numpy()
    return logits


class Fork:
    """Runs a function once for every combination of its choices."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self._counts: list[int] = []
        self._depth = 0
        self.weight = 1.0

    def choose(self, options: Sequence[tuple[T, float]]) -> T:
        """Return the value of one of the (value, probability) pairs; later runs return the others."""
        likely = [option for option in options if option[1] > LEAST_WEIGHT]
        if self._depth == len(self._taken):
            self._taken.append(0)
            self._counts.append(len(likely))
        value, probability = likely[self._taken[self._depth]]
        self._depth += 1
        self.weight *= probability
        return value

    def runs(self) -> Iterator[None]:
        """Yield before each run, until all combinations are done."""
        while True:
            self._depth, self.weight = 0, 1.0
            yield
            while self._taken and self._taken[-1] + 1 == self._counts[-1]:
                self._taken.pop()
                self._counts.pop()
            if not self._taken:
                return
            self._taken[-1] += 1


def engine_distribution(engine: Engine, monkeypatch: pytest.MonkeyPatch, request: EngineRequest) -> np.ndarray:
    """Return the distribution [vocab] * max_new_tokens of the engine's output for a request, over all seeds."""
    distribution = np.zeros((engine.vocab_size,) * request.max_new_tokens)
    for ids, weight in engine_texts(engine, monkeypatch, request).items():
        assert len(ids) == request.max_new_tokens
        distribution[ids] = weight
    return distribution


def engine_texts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, request: EngineRequest
) -> dict[tuple[int, ...], float]:
    """Return the probability of every possible output of the engine for a request, over all seeds."""
    fork = Fork()
    used: list[float] = []
    results: dict[object, list[tuple[VerifyResult, float]]] = {}

    def draw(draws: DraftSampling, probs: Tensor, column: int) -> Tensor:
        used.append(float(draws.uniforms[0, column]))
        return torch.tensor([fork.choose(list(enumerate(probs[0].tolist())))])

    def draw_result(
        rule: Callable[..., list[VerifyResult]],
        logits: Tensor,
        tokens: Tensor,
        tree: Tree,
        params: SamplingParams,
        **rest: Any,
    ) -> list[VerifyResult]:
        ours = rest["uniforms"].flatten().tolist()
        assert len(set(used)) == len(used), "a uniform drew two tokens"
        assert not set(used) & set(ours), "a uniform of the draft is used to verify it"
        used.clear()
        # runs with a common prefix repeat the same calls
        asked = (*map(_bytes_of, (logits, tokens, rest["draft_probs"])), tree.parents.tobytes())
        if asked not in results:
            results[asked] = result_distribution(rule, logits, tokens, tree, params, **rest)
        return [fork.choose(results[asked])]

    def of_chain(
        verify: Callable[..., list[VerifyResult]],
        is_block: bool,
        logits: Tensor,
        tokens: Tensor,
        lens: list[int],
        params: SamplingParams,
        draft_probs: Tensor | None,
        uniforms: Tensor,
    ) -> list[VerifyResult]:
        def rule(
            logits: Tensor, tokens: Tensor, tree: Tree, params: SamplingParams, draft_probs: Any, uniforms: Tensor
        ) -> Any:
            # the uniform of the next token is the first one of a tree, but the last one of a chain
            return verify(logits, tokens[:, 1:], lens * len(logits), params, draft_probs,
                               torch.cat([uniforms[:, 1:], uniforms[:, :1]], 1))  # fmt: skip

        length, root = tokens.shape[1] + 1, tokens.new_zeros((1, 1))
        tree = Tree(np.array([[-1, *(node if node < lens[0] else -1 for node in range(length - 1))]]))
        uniforms = torch.cat([uniforms[:, -1:], uniforms[:, :-1]], 1)
        return draw_result(rule, logits, torch.cat([root, tokens], 1), tree, params, draft_probs=draft_probs,
                       uniforms=uniforms, chain=True, block=is_block)  # fmt: skip

    def of_tree(
        logits: Tensor, tokens: Tensor, tree: Tree, limits: list[int], params: SamplingParams, draft_probs: Any,
        uniforms: Tensor, typical: Any,
    ) -> list[VerifyResult]:  # fmt: skip
        def rule(
            logits: Tensor, tokens: Tensor, tree: Tree, params: SamplingParams, draft_probs: Any, uniforms: Tensor
        ) -> Any:
            return verifier.tree(logits, tokens, tree, limits * len(logits), params, draft_probs, uniforms, typical)

        return draw_result(rule, logits, tokens, tree, params, draft_probs=draft_probs, uniforms=uniforms)

    verifier = engine.speculator.verifier
    distribution: dict[tuple[int, ...], float] = {}
    with monkeypatch.context() as patch:
        patch.setattr(DraftSampling, "draw", draw)
        patch.setattr(
            engine.speculator,
            "verifier",
            SimpleNamespace(
                chain=partial(of_chain, verifier.chain, False),
                block=partial(of_chain, verifier.block, True),
                tree=of_tree,
            ),
        )
        for _ in fork.runs():
            (result,) = engine.generate([request])
            distribution[result.ids] = distribution.get(result.ids, 0.0) + fork.weight
    return distribution


def result_distribution(
    rule: Callable[..., list[VerifyResult]], logits: Tensor, tokens: Tensor, tree: Tree, params: SamplingParams, *,
    draft_probs: Tensor | None, uniforms: Tensor, chain: bool = False, block: bool = False,
) -> list[tuple[VerifyResult, float]]:  # fmt: skip
    """Return every result of a rule on one row with its probability, by calling it for all cells of uniforms."""
    target = params.probs(logits)[0].double().numpy()
    drawn_from = None if draft_probs is None else draft_probs[0].double().numpy()
    if block:
        cuts = _cuts_of_block(target, tokens[0].tolist(), tree, drawn_from)
    elif chain:
        cuts = _cuts_of_draws(target, tokens[0].tolist(), tree, drawn_from, one_hot=True)
    elif drawn_from is not None:
        cuts = _cuts_of_draws(target, tokens[0].tolist(), tree, drawn_from)
    else:
        cuts = [_edges(row) for row in target]
    bounds = [np.array(sorted({0.0, 1.0, *cut})) for cut in cuts]
    columns = torch.from_numpy(_combined([(edges[:-1] + edges[1:]) / 2 for edges in bounds]))
    weights = _combined([np.diff(edges) for edges in bounds]).prod(1).tolist()
    many = len(weights)
    wide = SamplingParams(
        params.temperature.expand(many), params.top_k.expand(many), params.top_p.expand(many), params.truncates
    )
    spread = None if draft_probs is None else draft_probs.expand(many, -1, -1)
    found = rule(logits.expand(many, -1, -1), tokens.expand(many, -1), tree, wide, spread, columns)
    distribution: dict[tuple[tuple[int, ...], int], float] = {}
    for weight, result in zip(weights, found, strict=True):
        key = tuple(result.path), result.token
        distribution[key] = distribution.get(key, 0.0) + weight
    return [(VerifyResult(list(path), token), weight) for (path, token), weight in distribution.items()]


def _combined(columns: list[np.ndarray]) -> np.ndarray:
    """Return every row [combinations, columns] of one value from each column."""
    return np.stack([grid.ravel() for grid in np.meshgrid(*columns, indexing="ij")], 1)


def _bytes_of(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.numpy().tobytes()


def _edges(weights: np.ndarray) -> set[float]:
    total = weights.sum()
    return {min(1.0, float(edge)) for edge in np.cumsum(weights) / total} if total > 0 else set()


def _cuts_of_draws(
    target: np.ndarray, tokens: list[int], tree: Tree, drawn_from: np.ndarray | None, one_hot: bool = False
) -> list[set[float]]:
    """Return the values of each node's uniform at which the result changes, and of the root's, for the next token.

    A chain has a distribution per token, a tree has a distribution of the children per node.
    """
    cuts: list[set[float]] = [set() for _ in tokens]
    for node, children in enumerate(tree.children[0]):
        left = target[node].copy()
        if not one_hot:
            assert drawn_from is not None
            rest = drawn_from[node].copy()
        for child in children:
            if one_hot:
                rest = np.eye(len(left))[tokens[child]] if drawn_from is None else drawn_from[child - 1].copy()
            if rest[tokens[child]] > 0:
                cuts[child] = {min(1.0, left[tokens[child]] / rest[tokens[child]])}
            residual = np.maximum(left - rest, 0.0)
            left = residual / residual.sum() if residual.sum() > 0 else left
            rest[tokens[child]] = 0.0
            rest = rest / rest.sum() if rest.sum() > 0 else rest
            cuts[0] |= _edges(left)
        cuts[0] |= _edges(left) | _edges(target[node])
    return cuts


def _cuts_of_block(
    target: np.ndarray, tokens: list[int], tree: Tree, drawn_from: np.ndarray | None
) -> list[set[float]]:
    """Return the same for a chain that is accepted as a block."""
    cuts: list[set[float]] = [set() for _ in tokens]
    length, kept = int(tree.depths.max()), 1.0
    proposals = np.eye(target.shape[1])[tokens[1:]] if drawn_from is None else drawn_from
    for node in range(length + 1):
        if node:
            kept = reference.cover(kept * target[node - 1, tokens[node]], proposals[node - 1, tokens[node]])
        left = reference.surplus(kept, target[node], proposals[node]) if node < length else target[node]
        cuts[node] |= {reference.chance_of(left.sum(), kept) if node < length else kept}
        cuts[0] |= _edges(left) | _edges(target[node])
    return cuts


def target_distribution(model: Any, prompt: tuple[int, ...], sampling: SamplingOptions, new_tokens: int) -> np.ndarray:
    """Return the distribution [vocab] * new_tokens of transformers' model."""
    vocab = model.config.vocab_size
    distribution = np.zeros((vocab,) * new_tokens)

    def add(text: tuple[int, ...], weight: float) -> None:
        if len(text) == new_tokens:
            distribution[text] = weight
            return
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *text]])).logits[0, -1].double().numpy()
        row = reference.sampling_probs(logits, sampling.temperature, sampling.top_k, sampling.top_p)
        for token in range(vocab):
            if row[token] > 0:
                add((*text, token), weight * float(row[token]))

    add((), 1.0)
    return distribution


def assert_targets_distribution(
    engine: Engine, model: Any, monkeypatch: pytest.MonkeyPatch, sampling: SamplingOptions, new_tokens: int = 4
) -> None:
    """Compare the engine's distribution after a prompt with transformers'."""
    prompt = (1, 2, 0)
    ours = engine_distribution(engine, monkeypatch, EngineRequest(prompt, new_tokens, sampling))
    np.testing.assert_allclose(ours, target_distribution(model, prompt, sampling, new_tokens), atol=2e-5)


def assert_wrong_rule_is_seen(engine: Engine, model: Any, monkeypatch: pytest.MonkeyPatch, new_tokens: int = 3) -> None:
    """Break the acceptance rules, and assert that the same comparison detects it."""
    let_rules_go_wrong(engine, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_targets_distribution(engine, model, monkeypatch, SamplingOptions(1.0), new_tokens)


def let_rules_go_wrong(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an engine sample from the target's whole distribution after a rejection."""
    verifier = engine.speculator.verifier
    rules = {name: without_residual(getattr(verifier, name)) for name in ("chain", "block", "tree")}
    monkeypatch.setattr(engine.speculator, "verifier", SimpleNamespace(**rules))


def without_residual(verify: Callable[..., list[VerifyResult]]) -> Callable[..., list[VerifyResult]]:
    """Return a wrong acceptance rule, which samples from the target's whole distribution after a rejection."""

    def wrong(logits: Tensor, tokens: Tensor, shape: Any, *rest: Any) -> list[VerifyResult]:
        found = verify(logits, tokens, shape, *rest)
        params = next(value for value in rest if isinstance(value, SamplingParams))
        uniforms = rest[-1] if torch.is_tensor(rest[-1]) else rest[-2]
        last = uniforms[:, 0] if isinstance(shape, Tree) else uniforms[:, -1]
        probs = params.probs(logits)
        after = torch.stack([probs[row, (result.path or [0])[-1]] for row, result in enumerate(found)])
        drawn = reference_pick(after, last)
        return [VerifyResult(result.path, token) for result, token in zip(found, drawn, strict=True)]

    return wrong


def reference_pick(weights: Tensor, uniforms: Tensor) -> list[int]:
    """Return the oracle's choice in each row."""
    rows = zip(weights.double().numpy(), uniforms.tolist(), strict=True)
    return [reference.pick(row, uniform) for row, uniform in rows]
