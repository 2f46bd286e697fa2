# SPDX-License-Identifier: Apache-2.0
"""The interface between drafters and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.engine.model.decoder import Decoder
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams, pick
from trtspec.kernels.tree import Tree
from trtspec.methods.base import DraftShape


@dataclass(frozen=True)
class BatchShape:
    """The sizes that a drafter must support: a KV cache of `rows` x `max_len` on `device`, computing in `dtype`.

    `length` is the maximum length of a text. `kept_tokens` is the size of the prefix cache.
    """

    rows: int
    max_len: int
    device: torch.device
    dtype: torch.dtype
    length: int = 0
    kept_tokens: int = 0


@dataclass(frozen=True)
class DrafterConfig:
    """The arguments of a drafter's constructor.

    `root` is the draft model's checkpoint, None for methods without a draft model; draft heads are in the checkpoint of
    `target`. `options` are the validated options of the method. A chain ends where the product of the draft's
    confidence in its tokens falls below `confidence`.
    """

    target: Decoder
    root: Path | None
    room: BatchShape
    options: Any
    draft_shape: DraftShape
    confidence: float = 0.0


@dataclass(frozen=True)
class DraftSampling:
    """Sampling of drafts: `params` turn logits into probabilities, `uniforms` [rows, nodes] sample tokens from them.

    Greedy rows have temperature 0; for a batch of only greedy rows the DraftSampling is None.
    """

    params: SamplingParams
    uniforms: Tensor

    def draw(self, probs: Tensor, column: int) -> Tensor:
        """Return tokens [rows] sampled from probs [rows, vocab] with one column of uniforms; use each column once."""
        return pick(probs, self.uniforms[:, column])


@dataclass(frozen=True)
class DraftTokens:
    """The draft after each row's text: `tokens` [rows, nodes].

    Without `tree` the draft is a chain, and the first `lens[row]` tokens are valid (None: all). With a tree, `tokens`
    are its nodes without the root. `probs` are the distributions from which tokens were sampled, None for deterministic
    tokens (looked up, most probable, or only greedy rows): [rows, nodes, vocab] for a chain, [rows, nodes + 1, vocab]
    for a tree, where the distribution of a node is the one of its children, sampled without replacement.
    """

    tokens: Tensor
    probs: Tensor | None = None
    tree: Tree | None = None
    lens: list[int] | None = None


@dataclass(frozen=True)
class VerifyOutcome:
    """The target's outputs in a step: node 0 is the last token of a row's text, the others are the draft.

    `logits` [rows, nodes + 1, vocab] and `features` [rows, nodes + 1, aux_layers * hidden] are the target's outputs at
    each node; `features` is None for a drafter without auxiliary layers. `results` are the accepted path and the next
    token of each row.
    """

    results: list[VerifyResult]
    logits: Tensor
    features: Tensor | None

    def accepted_features(self) -> list[Tensor]:
        """Return the features [n, aux_layers * hidden] at the root and the accepted nodes of each row.

        They are gathered in one operation and then copied, so that running rows do not keep memory of finished ones.
        """
        if self.features is None:
            raise ValueError("features are only available to drafters with aux_layers")
        rows, width, _ = self.features.shape
        paths = [[0, *result.path] for result in self.results]
        indices = [row * width + node for row, path in enumerate(paths) for node in path]
        flat = self.features.flatten(0, 1)
        gathered = flat if len(indices) == rows * width else flat[torch.tensor(indices, device=flat.device)]
        return [part.clone() for part in torch.split(gathered, [len(path) for path in paths])]


class Drafter(Protocol):
    """Drafts tokens for the rows of a batch; row i is the i-th running request that is drafted for.

    A method's `drafter` module registers its class as `DRAFTER`. `aux_layers` are the target's auxiliary hidden-state
    layers that the drafter reads (see `Decoder.forward_with_features`). `vocab_size` is the drafter's vocabulary size
    if it must equal the target's. `lowerable` are the method's options that a request may lower. A drafter with
    `replays` proposes only from the text and the target's features, so that `replay.py` can evaluate it on known texts.
    Without `remembers` it keeps no state per row, and its rows are always all rows of the target.
    """

    aux_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    lowerable: tuple[str, ...] = ()
    replays: bool = True
    remembers: bool = True

    def __init__(self, setup: DrafterConfig) -> None: ...

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Process the prompts of new requests, which become rows `first_row`, `first_row` + 1, ..."""

    def read(self, features: Tensor, start: int) -> None:
        """Process the target's features [rows, width, aux_layers * hidden] of new prompts, from position `start` on.

        Called for each chunk of positions in order; features beyond a row's end must be ignored.
        """

    def lower(self, row: int, prompt: Sequence[int], options: Any) -> None:
        """Set the options of a new row; those in `lowerable` may be smaller than the engine's."""

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft at most `depth` tokens in a row after each text (prompt and output so far).

        With `sampling`, sampled tokens are drawn with its uniforms. The output keeps the target's distribution only if
        a draft depends on nothing but the text, these uniforms and observed outcomes.
        """

    def observe(self, outcome: VerifyOutcome) -> None:
        """Process the outcome of a step, also of a step without a proposal."""

    def retain(self, row: int, text: Sequence[int]) -> None:
        """Cache the state of a row whose text ended, for texts with the same prefix."""

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move row `source`, which is `length` tokens long, to row `target`."""
