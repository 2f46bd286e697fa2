# SPDX-License-Identifier: Apache-2.0
"""Interface between drafters and the engine, and construction of chain drafts.

A chain is a draft without branches. It is drafted token by token with a language model, or from the logits of all
positions at once. A `Vocabulary` maps a draft's token ids to its target's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.checkpoints.translation import MAX_LENGTH_RATIO, VocabMapping, read_vocab_mapping
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.positions import Window
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams, pick
from trtspec.kernels.tree import Tree
from trtspec.methods.base import DraftShape


@dataclass(frozen=True)
class BatchShape:
    """Sizes that a drafter must support: a KV cache of `rows` x `max_len` on `device`, computing in `dtype`.

    `length` is the maximum length of a text and `kept_tokens` the size of the prefix cache, both in tokens.
    """

    rows: int
    max_len: int
    device: torch.device
    dtype: torch.dtype
    length: int = 0
    kept_tokens: int = 0


@dataclass(frozen=True)
class DrafterConfig:
    """Arguments of a drafter's constructor.

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
    """Sampling of a batch's drafts: `params` convert logits to probabilities, `uniforms` [rows, nodes] select tokens.

    Greedy rows have temperature 0. For a batch with only greedy rows, None is used in place of a DraftSampling.
    """

    params: SamplingParams
    uniforms: Tensor

    def draw(self, probs: Tensor, column: int) -> Tensor:
        """Return tokens [rows] sampled from probs [rows, vocab] with one column of `uniforms`; use each column once."""
        return pick(probs, self.uniforms[:, column])


@dataclass(frozen=True)
class DraftTokens:
    """Draft tokens [rows, nodes] that continue each row's text.

    Without `tree` the draft is a chain, and the first `lens[row]` tokens are valid (None: all). With a tree, `tokens`
    are its nodes without the root. `probs` are the distributions from which tokens were sampled, None for deterministic
    tokens (looked up, most probable, or only greedy rows). For a chain they are [rows, nodes, vocab]. For a tree they
    are [rows, nodes + 1, vocab], one distribution per node for its children, which are sampled without replacement.
    """

    tokens: Tensor
    probs: Tensor | None = None
    tree: Tree | None = None
    lens: list[int] | None = None


@dataclass(frozen=True)
class VerifyOutcome:
    """The target's outputs in a verification step: node 0 is the last token of a row's text, the others are the draft.

    `logits` [rows, nodes + 1, vocab] and `features` [rows, nodes + 1, aux_layers * hidden] are the target's outputs at
    each node; `features` is None for a drafter without auxiliary layers. `results` are the accepted path and the next
    token of each row. `own` is the number of leading tokens of each row's chain that are the drafter's, None for all;
    the others are forced by a request's grammar.
    """

    results: list[VerifyResult]
    logits: Tensor
    features: Tensor | None
    own: list[int] | None = None

    def accepted_features(self) -> list[Tensor]:
        """Return, for each row, the features [n, aux_layers * hidden] of the root and the accepted nodes.

        Each tensor is a copy, so that running rows do not retain the memory of finished ones. Raises ValueError if the
        target returned no features.
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
    """Interface of drafters, which propose tokens for a batch; row i is the i-th running request with drafts.

    A method's `drafter` module registers its class as `DRAFTER`. `aux_layers` are the target's auxiliary hidden-state
    layers that the drafter reads (see `Decoder.forward_with_features`). `vocab_size` is the drafter's vocabulary size
    if it must equal the target's. `lowerable` are the method's options that a request may lower. A drafter with
    `replays` uses only the text and the target's features, so that `measurement.replay` can evaluate it on known texts.
    A drafter without `remembers` keeps no state per row; its rows are always all rows of the target.
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
        """Process the target's features [rows, width, aux_layers * hidden] of new prompts from position `start`.

        The engine calls this for each chunk of positions in order. Features beyond a row's end must be ignored.
        """

    def lower(self, row: int, prompt: Sequence[int], options: Any) -> None:
        """Set the options of a new row; options named in `lowerable` may be smaller than the engine's."""

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft at most `depth` consecutive tokens after each text (prompt and output so far).

        With `sampling`, sampled tokens are drawn with its uniforms. The output has the target's distribution only if a
        draft depends on nothing but the text, these uniforms and observed outcomes.
        """

    def observe(self, outcome: VerifyOutcome) -> None:
        """Process the outcome of a verification step, also of a step without a draft."""

    def retain(self, row: int, text: Sequence[int]) -> None:
        """Cache the state of a row whose text ended, for later texts with the same prefix."""

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the state of row `source`, which has `length` tokens, to row `target`."""


class Vocabulary:
    """Mapping between the token ids of a draft and of its target; this base class is for equal vocabularies.

    A text has up to `longer` times as many draft tokens as target tokens.
    """

    longer = 1

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of drafted tokens, given as the draft's ids."""
        return tokens

    def to_draft(self, tokens: Tensor) -> Tensor:
        """Return the draft's ids of drafted tokens, given as the target's ids."""
        return tokens

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Return the draft's tokens for the target's tokens, at least one for each."""
        return [*tokens]

    def shared(self, logits: Tensor) -> Tensor:
        """Return the logits [rows, n] of the tokens that may be drafted, from logits over all of the draft's tokens."""
        return logits

    def spread(self, probs: Tensor) -> Tensor:
        """Map probabilities [..., n] of the tokens that may be drafted to the target's vocabulary; other ids get 0."""
        return probs


SAME = Vocabulary()


class SmallerVocabulary(Vocabulary):
    """Vocabulary of a draft with a subset of the target's tokens.

    `target_ids` [draft vocabulary] are the target's ids, and `size` is the size of the target's vocabulary.
    """

    def __init__(self, target_ids: Tensor, size: int) -> None:
        self._target_ids, self._size = target_ids, size

    def to_target(self, tokens: Tensor) -> Tensor:
        return self._target_ids[tokens]

    def spread(self, probs: Tensor) -> Tensor:
        whole = probs.new_zeros((*probs.shape[:-1], self._size))
        return whole.index_copy_(-1, self._target_ids, probs)


class TranslatedVocabulary(SmallerVocabulary):
    """Vocabulary of a draft with another tokenizer, which drafts only tokens that the target has too.

    The draft's distribution is computed from the logits of these tokens only, so that verification uses the
    distribution from which the tokens were sampled.
    """

    longer = MAX_LENGTH_RATIO

    def __init__(self, mapping: VocabMapping, device: torch.device) -> None:
        super().__init__(torch.tensor(mapping.target_ids, device=device), len(mapping.spellings))
        self._spellings = mapping.spellings
        self._draft_ids = torch.tensor(mapping.draft_ids, device=device)
        self._draft_of = torch.zeros(len(mapping.spellings), dtype=torch.int64, device=device)
        self._draft_of[self._target_ids] = self._draft_ids

    def to_draft(self, tokens: Tensor) -> Tensor:
        return self._draft_of[tokens]

    def spell(self, tokens: Iterable[int]) -> list[int]:
        return [drafted for token in tokens for drafted in self._spellings[token]]

    def shared(self, logits: Tensor) -> Tensor:
        return logits[:, self._draft_ids]


def load_vocabulary(root: Path, target_size: int, draft_size: int, device: torch.device) -> Vocabulary:
    """Load the vocabulary of the draft in the checkpoint `root`; the sizes are numbers of vocabulary entries."""
    mapping = read_vocab_mapping(root, target_size, draft_size)
    return TranslatedVocabulary(mapping, device) if mapping else SAME


@dataclass(frozen=True)
class ConfidenceFloor:
    """Minimum confidence for a draft to continue; 0 disables a bound.

    The confidence at a position is the probability of the most probable token, or the draft's own estimate. `token`
    bounds the confidence at each position, and `chain` its product over the positions so far.

    The decision depends only on a token's distribution and the tokens before it. If it depended on the token itself, it
    would bias the text.
    """

    token: float = 0.0
    chain: float = 0.0

    def lens(self, confidence: Tensor) -> list[int]:
        """Return each row's draft length, given the confidence [rows, positions]."""
        sufficient = (confidence >= self.token) & (confidence.cumprod(1) >= self.chain)
        lens: list[int] = sufficient.long().cumprod(1).sum(1).tolist()
        return lens


NO_FLOOR = ConfidenceFloor()


class SampledChain:
    """Builder of chains for `rows` rows, from the logits of one position at a time."""

    def __init__(
        self, rows: int, device: torch.device, sampling: DraftSampling | None, vocabulary: Vocabulary = SAME
    ) -> None:
        self._sampling, self._vocabulary = sampling, vocabulary
        self._tokens, self._probs = [torch.empty((rows, 0), dtype=torch.int64, device=device)], list[Tensor]()

    def add(self, logits: Tensor) -> Tensor:
        """Draft one token per row from logits [rows, draft vocabulary]; return the target's ids [rows]."""
        if self._sampling is None:
            drafted = logits.argmax(-1)
        else:
            probs = self._sampling.params.probs(logits)
            drafted = self._sampling.draw(probs, len(self._probs))
            self._probs.append(self._vocabulary.spread(probs))
        tokens = self._vocabulary.to_target(drafted)
        self._tokens.append(tokens.unsqueeze(1))
        return tokens

    def draft(self, lens: list[int]) -> DraftTokens:
        """Return the draft with `lens` valid tokens per row, truncated to the longest row."""
        tokens, most = torch.cat(self._tokens, 1), max(lens)
        return DraftTokens(
            tokens[:, :most], torch.stack(self._probs[:most], 1) if self._probs[:most] else None, lens=lens
        )


def max_probability(logits: Tensor) -> Tensor:
    """Return the probability [...] of the most probable token, given logits [..., vocabulary]."""
    return torch.softmax(logits.float(), -1).amax(-1)


def draft_chain(
    logits: Tensor,
    forward: Callable[[Tensor, Window], Tensor],
    windows: Sequence[Window],
    sampling: DraftSampling | None,
    floors: ConfidenceFloor,
    vocabulary: Vocabulary = SAME,
) -> DraftTokens:
    """Draft one token after each text and one per window, until the confidence is too low in all rows.

    Args:
        logits: [rows, draft vocabulary], after each text.
        forward: returns the logits after drafted tokens [rows], given as the target's ids, at a window.
        windows: the positions of the drafted tokens except the last.
        sampling: the sampling of drafts, or None if all rows are greedy.
        floors: the minimum confidence; a non-zero bound costs one transfer to the host per token.
        vocabulary: the vocabulary of the logits.
    """
    rows = len(logits)
    chain = SampledChain(rows, logits.device, sampling, vocabulary)
    grows, lens, confidence = [True] * rows, [0] * rows, torch.ones(rows, device=logits.device)
    for window in (*windows, None):
        if floors != NO_FLOOR:
            probability = max_probability(logits)
            confidence = confidence * probability
            sufficient = (probability >= floors.token) & (confidence >= floors.chain)
            grows = [grew and is_enough for grew, is_enough in zip(grows, sufficient.tolist(), strict=True)]
            if not any(grows):
                break
        lens = [length + grew for length, grew in zip(lens, grows, strict=True)]
        tokens = chain.add(logits)
        if window is not None:
            logits = forward(tokens, window)
    return chain.draft(lens)


def draft_parallel(
    logits: Tensor, sampling: DraftSampling | None, floors: ConfidenceFloor, vocabulary: Vocabulary = SAME
) -> DraftTokens:
    """Draft one token for each position of logits [rows, positions, draft vocabulary], limited by `floors`."""
    rows, positions, _ = logits.shape
    chain = SampledChain(rows, logits.device, sampling, vocabulary)
    for at_position in logits.unbind(1):
        chain.add(at_position)
    return chain.draft([positions] * rows if floors == NO_FLOOR else floors.lens(max_probability(logits)))
