# SPDX-License-Identifier: Apache-2.0
"""The interface of drafters to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.engine.model.decoder import Decoder
from trtspec.kernels.sampling import SamplingParams, pick
from trtspec.kernels.tree import Tree
from trtspec.kernels.verify_result import VerifyResult
from trtspec.methods.base import DraftShape


@dataclass(frozen=True)
class Room:
    """The sizes a drafter has to serve: a KV cache of `rows` x `max_len` on `device`, computing in `dtype`.

    `length` is the length of the longest text that is served. Of texts that ended, `kept_tokens` may be kept.
    """

    rows: int
    max_len: int
    device: torch.device
    dtype: torch.dtype
    length: int = 0
    kept_tokens: int = 0


@dataclass(frozen=True)
class Setup:
    """The arguments of a drafter's constructor.

    `root` is the draft model's checkpoint, None for methods without one; draft heads are in
    the checkpoint of `target`. `options` are the method's, validated. A chain ends where the product of how sure the
    draft is of its tokens falls below `confidence`.
    """

    target: Decoder
    root: Path | None
    room: Room
    options: Any
    draft_shape: DraftShape
    confidence: float = 0.0


@dataclass(frozen=True)
class DraftSampling:
    """How the rows of a batch sample: `params` turn logits into probabilities, `uniforms` [rows, nodes] sample drafts.

    Greedy rows have temperature 0; a batch of only greedy rows has no DraftSampling.
    """

    params: SamplingParams
    uniforms: Tensor

    def draw(self, probs: Tensor, column: int) -> Tensor:
        """Return tokens [rows] sampled from probs [rows, vocab] with one column of uniforms, to be used once."""
        return pick(probs, self.uniforms[:, column])


@dataclass(frozen=True)
class Draft:
    """The draft after each row's text: `tokens` [rows, nodes].

    Without `tree` it is a chain, of which `lens` tokens are valid in each row (None for all); with a tree, `tokens` are
    its nodes without the root. `probs` is what tokens were sampled from, None for deterministic tokens (looked up, most
    probable, or only greedy rows): [rows, nodes, vocab] for a chain, [rows, nodes + 1, vocab] for a tree, in which a
    node's row is what its children were sampled from without replacement.
    """

    tokens: Tensor
    probs: Tensor | None = None
    tree: Tree | None = None
    lens: list[int] | None = None


@dataclass(frozen=True)
class Outcome:
    """The target's outputs in a step: node 0 is the last token of a row's text, the others are the draft.

    `logits` [rows, nodes + 1, vocab] and `features` [rows, nodes + 1, aux_layers * hidden] (None for a drafter without
    auxiliary layers) are the target's at each node; `results` are the accepted path and the next token of each row.
    """

    results: list[VerifyResult]
    logits: Tensor
    features: Tensor | None

    def accepted_features(self) -> list[Tensor]:
        """Return of each row the features [n, aux_layers * hidden] at its root and its accepted nodes.

        Gathered at once, and each row's own: one that goes on holds nothing of rows that ended.
        """
        if self.features is None:
            raise ValueError("a drafter with aux_layers gets features of the target")
        rows, width, _ = self.features.shape
        paths = [[0, *result.path] for result in self.results]
        places = [row * width + node for row, path in enumerate(paths) for node in path]
        flat = self.features.flatten(0, 1)
        kept = flat if len(places) == rows * width else flat[torch.tensor(places, device=flat.device)]
        return [part.clone() for part in torch.split(kept, [len(path) for path in paths])]


class Drafter(Protocol):
    """Drafts tokens for the rows of a batch. Row i is request i of the engine's running batch that is drafted for.

    A module of `drafters/` joins by defining its class as `DRAFTER`. `aux_layers` are the target's auxiliary
    hidden-state layers that it reads (see `Decoder.forward_with_features`), `vocab_size` is the drafter's own where
    that is not the target's, `lowerable` are the method's options that a request may lower for itself. One that
    `replays` proposes by the text and the target's features alone: a known text tells what it proposes (`replay.py`).
    One that does not `remember` keeps nothing of its rows, which are always all of the target's.
    """

    aux_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    lowerable: tuple[str, ...] = ()
    replays: bool = True
    remembers: bool = True

    def __init__(self, setup: Setup) -> None: ...

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Process the prompts of new requests, which become rows `first_row`, `first_row` + 1, ..."""

    def read(self, features: Tensor, start: int) -> None:
        """Process the target's features [rows, width, aux_layers * hidden] of new prompts, from position `start` on.

        Called for each chunk of positions in order; features beyond a row's end are to be ignored.
        """

    def lower(self, row: int, prompt: Sequence[int], options: Any) -> None:
        """Give a new row options of its own, of which those in `lowerable` may be smaller than the engine's."""

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> Draft:
        """Draft at most `depth` tokens in a row after each text (prompt and output so far).

        With `sampling`, sampled tokens are drawn by its uniforms. The output keeps the target's distribution only if a
        draft depends on nothing but the text, those uniforms and what was observed.
        """

    def observe(self, outcome: Outcome) -> None:
        """Process the outcome of a step, whether anything was proposed in it or not."""

    def keep(self, row: int, text: Sequence[int]) -> None:
        """Keep what was read of a row's text, which ended, for those that begin alike."""

    def move_row(self, source: int, target: int, length: int) -> None:
        """Let row `source`, `length` tokens long, become row `target`."""
