# SPDX-License-Identifier: Apache-2.0
"""What a drafter does for the engine's step, whatever it drafts with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.kernels.sampling import SamplingParams, pick
from trtspec.kernels.tree import Tree
from trtspec.kernels.verify_result import VerifyResult
from trtspec.methods.base import DraftShape
from trtspec.torch_engine.model.decoder import Decoder


@dataclass(frozen=True)
class Room:
    """The place a drafter gets: a KV cache of `rows` x `max_len` on `device`, computing in `dtype`.

    `length` is that of the longest text that is served.
    """

    rows: int
    max_len: int
    device: torch.device
    dtype: torch.dtype
    length: int = 0


@dataclass(frozen=True)
class Setup:
    """What a drafter is made of.

    `root` is the draft model's checkpoint, None for the methods without one; parts of the target's checkpoint are read
    from `target`. `options` are the method's, checked.
    """

    target: Decoder
    root: Path | None
    room: Room
    options: Any
    draft_shape: DraftShape


@dataclass(frozen=True)
class DraftSampling:
    """How the rows of a batch sample: `params` turns logits into probabilities, `uniforms` [rows, nodes] draw drafts.

    Greedy rows are among them, with temperature 0; a batch of greedy rows alone has no DraftSampling.
    """

    params: SamplingParams
    uniforms: Tensor

    def draw(self, probs: Tensor, column: int) -> Tensor:
        """Return tokens [rows] drawn from probs [rows, vocab] by the uniforms of a column, each to be used once."""
        return pick(probs, self.uniforms[:, column])


@dataclass(frozen=True)
class Draft:
    """What is drafted after each row's text: `tokens` [rows, nodes].

    A chain without `tree`, of which `lens` tokens count in each row (all where None); with a tree, `tokens` are its
    nodes but the root. `probs` is what tokens were drawn from, None where they were not drawn (looked up, most probable
    ones, greedy rows alone): [rows, nodes, vocab] for a chain, for a tree [rows, nodes + 1, vocab], a node's row being
    what its children were drawn from without replacement.
    """

    tokens: Tensor
    probs: Tensor | None = None
    tree: Tree | None = None
    lens: list[int] | None = None


@dataclass(frozen=True)
class Outcome:
    """What the target made of a step's tokens: node 0 is the last token of a row's text, the others what was drafted.

    `logits` [rows, nodes + 1, vocab] and `features` [rows, nodes + 1, aux_layers * hidden] (None for a drafter without
    auxiliary layers) are the target's at each node, `results` the accepted path and the next token of each row.
    """

    results: list[VerifyResult]
    logits: Tensor
    features: Tensor | None


class Drafter(Protocol):
    """Proposes tokens for the rows of a batch. Rows are the engine's: row i is request i of the running batch.

    A module of `drafters/` joins by defining its class as `DRAFTER`. `aux_layers` are the target's auxiliary
    hidden-state layers that it reads (see `Decoder.forward_with_features`), `vocab_size` is what it drafts from where
    that is not the target's, `lowerable` are the method's options that a request may lower for itself.
    """

    aux_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    lowerable: tuple[str, ...] = ()

    def __init__(self, setup: Setup) -> None: ...

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Take in the prompts of new requests, which become rows `first_row`, `first_row` + 1, ..."""

    def read(self, features: Tensor, start: int) -> None:
        """Take in the target's features [rows, width, aux_layers * hidden] of the prompts just begun, from `start` on.

        Called for one chunk of positions after the other; what stands beyond a row's end is to be ignored.
        """

    def lower(self, row: int, prompt: Sequence[int], options: Any) -> None:
        """Let a row just begun be drafted for with options of its own, none of `lowerable` larger than the engine's."""

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> Draft:
        """Draft at most `depth` tokens, one after another, behind each text (prompt and output so far).

        With `sampling`, sampled tokens are drawn by its uniforms. The output keeps the target's distribution only if a
        draft depends on nothing but the text, those uniforms and what was observed.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn what became of a step, whether anything was proposed in it or not."""

    def move_row(self, source: int, target: int, length: int) -> None:
        """Let row `source`, `length` tokens long, become row `target`."""
