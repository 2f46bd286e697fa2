# SPDX-License-Identifier: Apache-2.0
"""Verification that accepts drafts by a seeded coin, for capacity tests: the texts are not the target's.

The real verification runs as well, so that a step costs what it costs in operation; only its result is replaced. The
token after the accepted ones is the target's choice at that place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams
from trtspec.kernels.tree import Tree, TypicalAcceptance
from trtspec.kernels.verifier import DraftVerifier

SEED = 0


@dataclass(frozen=True)
class SimulatedVerifier(DraftVerifier):
    """A verifier with forced acceptance.

    `rates` are the shares of rows that accept at least 1, 2, ... draft tokens, each at most the one before. A row
    accepts no more than its own draft, and nothing without one.
    """

    verifier: DraftVerifier
    rates: Sequence[float]
    random: np.random.Generator = field(default_factory=partial(np.random.default_rng, SEED))

    def chain(self, *arguments: Any) -> list[VerifyResult]:
        """Accept chains by the coin; arguments as in `chain.verify_chain`."""
        return self._accept_chains(self.verifier.chain, *arguments)

    def block(self, *arguments: Any) -> list[VerifyResult]:
        """Accept chains by the coin; arguments as in `chain.verify_block`."""
        return self._accept_chains(self.verifier.block, *arguments)

    def tree(
        self,
        logits: Tensor,
        tokens: Tensor,
        tree: Tree,
        limits: Sequence[int],
        params: SamplingParams | None = None,
        draft_probs: Tensor | None = None,
        uniforms: Tensor | None = None,
        typical: TypicalAcceptance | None = None,
    ) -> list[VerifyResult]:
        """Accept a path of each tree by the coin; arguments as in `tree.verify_tree`."""
        self.verifier.tree(logits, tokens, tree, limits, params, draft_probs, uniforms, typical)
        within = tree.within(limits)
        parents, depths = (np.broadcast_to(each, tokens.shape) for each in (within.parents, within.depths))
        counts = self._counts(depths.max(1).tolist())
        paths = [_path(*row) for row in zip(parents.tolist(), depths.tolist(), counts, strict=True)]
        return self._continue(logits, paths, params, None if uniforms is None else uniforms[:, :1])

    def _accept_chains(
        self,
        verify: Callable[..., list[VerifyResult]],
        logits: Tensor,
        tokens: Tensor,
        lens: Sequence[int],
        params: SamplingParams | None = None,
        draft_probs: Tensor | None = None,
        uniforms: Tensor | None = None,
    ) -> list[VerifyResult]:
        verify(logits, tokens, lens, params, draft_probs, uniforms)
        paths = [[*range(1, count + 1)] for count in self._counts(lens)]
        return self._continue(logits, paths, params, None if uniforms is None else uniforms[:, -1:])

    def _counts(self, limits: Sequence[int]) -> list[int]:
        """Draw each row's number of accepted tokens; rows without a draft draw no number."""
        return [sum(self.random.random() < np.array(self.rates[:limit])) if limit else 0 for limit in limits]

    def _continue(
        self, logits: Tensor, paths: list[list[int]], params: SamplingParams | None, uniforms: Tensor | None
    ) -> list[VerifyResult]:
        """Return the paths, each with the target's token after it.

        `logits` are [rows, nodes, vocab], and `uniforms` [rows, 1] sample the tokens.
        """
        ends = torch.tensor([path[-1] if path else 0 for path in paths], device=logits.device)
        after = logits[torch.arange(len(paths), device=logits.device), ends].unsqueeze(1)
        nothing = torch.empty((len(paths), 0), dtype=torch.int64, device=logits.device)
        found = self.verifier.chain(after, nothing, [0] * len(paths), params, None, uniforms)
        return [VerifyResult(path, each.token) for path, each in zip(paths, found, strict=True)]


def _path(parents: list[int], depths: list[int], length: int) -> list[int]:
    """Return the nodes from the root's child to the first node at depth `length`."""
    path: list[int] = []
    node = depths.index(length)
    while node > 0:
        path.insert(0, node)
        node = parents[node]
    return path
